// InsidePlacing: moves the files of a new result into a folder that cannot be renamed itself, such
// as a mount point. Whenever the process ends, the folder holds the old result, the new one, or no
// config.json; Recover then finishes the move or takes it back. Nothing is deleted before the new
// result is in place. Used by one thread.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

// How names are looked up and moved; a test answers in place of the file system. `rename` and
// `exchange` return 0 or an errno.
struct NameCalls {
  using Move =
      std::function<int(const std::filesystem::path& from, const std::filesystem::path& to)>;
  std::function<bool(const std::filesystem::path&)> is_mount_point;
  Move rename;
  Move exchange;

  static NameCalls System();
};

// The file whose presence makes a folder a result.
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kTemporarySuffix = ".tmp";

Status SyncFolder(const std::filesystem::path& folder);
Status FailedCall(const std::filesystem::path& path, std::string_view what, int error);

class InsidePlacing {
 public:
  // `is_own`: of a name in the folder, whether it goes with the old result, as do the names that
  // the new one has.
  InsidePlacing(std::filesystem::path folder, std::function<bool(const std::string&)> is_own,
                NameCalls calls);

  // A name inside the folder, the same wherever the folder is mounted.
  std::filesystem::path Name(const std::string& suffix) const;
  // Where the new files are written; Place moves them away.
  const std::filesystem::path& temporary() const { return temporary_; }
  // After an error the files of both results are where they were, or the message says where.
  Status Place();
  // Finishes or takes back what an interrupted Place left. Files that were still written when the
  // run ended stay in temporary().
  Status Recover();

 private:
  Status Move(const std::filesystem::path& from, const std::filesystem::path& to) const;
  Status Complete(const std::filesystem::path& from, const std::filesystem::path& to) const;
  Status TakeApart(const std::vector<std::string>& names, const std::filesystem::path& to) const;
  Status TakeBack(const std::vector<std::string>& names) const;

  const std::filesystem::path folder_;
  const std::function<bool(const std::string&)> is_own_;
  const NameCalls calls_;
  const std::filesystem::path temporary_;  // the new result while it is written
  const std::filesystem::path ready_;      // the same, once the old result is out of the way
  const std::filesystem::path old_;        // the old result until the new one is in place
};

}  // namespace tandem
