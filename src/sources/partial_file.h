// PartialFile: a file that arrives in parts. NAME.partial holds the bytes, NAME.parts how far each
// part has come, so that a download that ended, in whatever way, goes on from there. Different
// parts may be written from different threads; everything else is one thread's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sources/digest.h"

namespace tandem {

class PartialFile {
 public:
  // Goes on with what lies there if that was written for the same `identity` (a checksum or the
  // like), length and size of parts; else begins anew.
  static Result<std::unique_ptr<PartialFile>> Open(const std::filesystem::path& destination,
                                                   std::string_view identity, int64_t bytes,
                                                   int64_t part_bytes);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  int num_parts() const { return static_cast<int>(done_.size()); }
  int64_t PartBegin(int part) const { return part * part_bytes_; }
  int64_t PartSize(int part) const;
  int64_t PartDone(int part) const { return done_[static_cast<size_t>(part)]; }
  // Bytes of all parts that are not there yet. Not while parts are written.
  int64_t BytesMissing() const;

  // Appends to a part, which has room for it. RESOURCE_EXHAUSTED when the disk is full.
  Status Append(int part, std::span<const std::byte> bytes);

  // Once all parts are complete: checks the digest, and gives the file its name. With DATA_LOSS
  // nothing of it is kept.
  Status Commit(const std::optional<ExpectedDigest>& digest);

  // Removes what lies there, unless a part of it has arrived.
  void RemoveIfEmpty();

 private:
  PartialFile(std::filesystem::path destination, int64_t bytes, int64_t part_bytes);
  // Few files are written at a time, and there may be more than a process may have open.
  Status OpenFiles();
  void CloseFiles();
  void Remove();
  Status Begin(std::string_view head);
  bool Continue(std::string_view head);
  Status WriteAt(int fd, const std::filesystem::path& path, int64_t offset,
                 std::span<const std::byte> bytes) const;

  const std::filesystem::path destination_;
  const std::filesystem::path bytes_path_;
  const std::filesystem::path parts_path_;
  const int64_t bytes_;
  const int64_t part_bytes_;
  std::vector<int64_t> done_;  // bytes of each part
  std::once_flag opening_;
  Status opened_;  // set by OpenFiles
  int bytes_fd_ = -1;
  int parts_fd_ = -1;
};

}  // namespace tandem
