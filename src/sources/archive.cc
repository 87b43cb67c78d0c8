#include "sources/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "base/options.h"
#include "base/printable.h"
#include "sources/model_files.h"
#include "sources/source_cache.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Small files may be all zeros.
constexpr int64_t kBytesOfAnyRatio = int64_t{64} << 20;

// "./a//b/" → "a/b"; empty for the folder itself.
std::string Tidied(std::string_view name) {
  std::string tidy;
  while (!name.empty()) {
    const size_t end = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, end);
    name.remove_prefix(std::min(end + 1, name.size()));
    if (part.empty() || part == ".") continue;
    if (!tidy.empty()) tidy += '/';
    tidy += part;
  }
  return tidy;
}

// Where the target of a link in this folder is, counted from the root; nothing when outside.
std::optional<std::string> TargetOf(const std::string& link, std::string_view target) {
  if (target.empty() || target.front() == '/') return std::nullopt;
  fs::path path = fs::path(link).parent_path();
  for (const fs::path& part : fs::path(target)) {
    if (part == "..") {
      if (path.empty()) return std::nullopt;
      path = path.parent_path();
    } else if (!part.empty() && part != ".") {
      path /= part;
    }
  }
  return path.string();
}

Status Unsafe(std::string_view name, std::string_view why) {
  constexpr size_t kShown = 200;
  return DataLoss(fmt::format("is not unpacked: its entry {}{} {}",
                              Printable(name.substr(0, kShown)), name.size() > kShown ? "…" : "",
                              why));
}

Status WriteError(const fs::path& path, int error) {
  const std::string sentence = path.string() + ": cannot be written: " + std::strerror(error);
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return is_full
             ? ResourceExhausted(sentence + "; free some space, or name a folder on a larger disk")
             : FailedPrecondition(sentence);
}

class Unpacker {
 public:
  Unpacker(fs::path archive, fs::path root, const UnpackLimits& limits)
      : archive_(std::move(archive)),
        root_(std::move(root)),
        limits_(limits),
        reader_(archive_read_new(), archive_read_free) {}

  Status Run() {
    TANDEM_RETURN_IF_ERROR(OpenArchive());
    TANDEM_RETURN_IF_ERROR(MeasureLimits());
    while (true) {
      archive_entry* entry = nullptr;
      const int result = archive_read_next_header(reader_.get(), &entry);
      if (result == ARCHIVE_EOF) break;
      if (result < ARCHIVE_WARN) return Damaged();
      TANDEM_RETURN_IF_ERROR(Take(entry));
    }
    TANDEM_RETURN_IF_ERROR(CheckEnd());
    return MakeLinks();
  }

 private:
  struct Link {
    std::string name;
    std::string target;  // of a hard link: another name in the archive
    bool is_hard = false;
  };

  Status OpenArchive() {
    archive* reader = reader_.get();
    archive_read_support_format_tar(reader);
    archive_read_support_format_gnutar(reader);
    archive_read_support_format_zip(reader);
    archive_read_support_filter_gzip(reader);
    archive_read_support_filter_bzip2(reader);
    archive_read_support_filter_xz(reader);
    archive_read_support_filter_zstd(reader);
    constexpr size_t kBlock = size_t{256} << 10;
    if (archive_read_open_filename(reader, archive_.c_str(), kBlock) == ARCHIVE_OK) return {};
    return Damaged();
  }

  Status Damaged() const {
    const char* why = archive_error_string(reader_.get());
    return DataLoss(fmt::format("is no whole tar or zip archive: {}",
                                Printable(why == nullptr ? "damaged" : why)));
  }

  // A tar ends with blocks of zeros. One that was cut between two entries does not, and libarchive
  // takes it for whole: then it read nothing after the last entry.
  Status CheckEnd() const {
    const bool is_tar =
        (archive_format(reader_.get()) & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_TAR;
    const int64_t read = archive_filter_bytes(reader_.get(), 0);
    if (!is_tar || read > archive_read_header_position(reader_.get())) return {};
    return DataLoss(
        "is no whole tar archive: it ends early, without the zeros that end one; copy or download "
        "it again");
  }

  Status MeasureLimits() {
    std::error_code error;
    const auto size = static_cast<int64_t>(fs::file_size(archive_, error));
    if (error) return FailedPrecondition(error.message());
    by_ratio_ = kBytesOfAnyRatio + size * limits_.max_ratio;
    const fs::space_info space = fs::space(root_, error);
    if (!error) free_ = static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
    return {};
  }

  // Whether the archive may write this many bytes in total.
  Status CheckBytes(int64_t bytes, std::string_view name) const {
    if (bytes > limits_.max_bytes) {
      return Unsafe(
          name, fmt::format("makes it longer than {}, the limit", FormatBytes(limits_.max_bytes)));
    }
    if (bytes > by_ratio_) {
      return Unsafe(name, fmt::format("makes it more than {} times as long as the archive",
                                      limits_.max_ratio));
    }
    if (bytes > free_) {
      return ResourceExhausted(
          fmt::format("needs more than {}, and {} has {} free; name a folder on a larger disk with "
                      "--download_dir",
                      FormatBytes(bytes), root_.string(), FormatBytes(free_)));
    }
    return {};
  }

  Status Take(archive_entry* entry) {
    const char* raw = archive_entry_pathname_utf8(entry);
    if (raw == nullptr) raw = archive_entry_pathname(entry);
    const std::string_view given = raw == nullptr ? "" : raw;
    if (++entries_ > limits_.max_entries) {
      return Unsafe(given, fmt::format("is beyond the limit of {}", limits_.max_entries));
    }
    if (given.empty()) return Unsafe(given, "has no name that can be read");
    if (given.front() == '/') return Unsafe(given, "has an absolute name");
    const std::string name = Tidied(given);
    if (name.empty()) return {};
    TANDEM_RETURN_IF_ERROR(CheckName(name, given));
    const char* hard = archive_entry_hardlink_utf8(entry);
    if (hard == nullptr) hard = archive_entry_hardlink(entry);
    if (hard != nullptr) return KeepLink({name, hard, true});
    switch (archive_entry_filetype(entry)) {
      case AE_IFDIR:
        return MakeFolders(root_ / name);
      case AE_IFREG:
        return WriteFile(entry, name);
      case AE_IFLNK: {
        const char* target = archive_entry_symlink_utf8(entry);
        if (target == nullptr) target = archive_entry_symlink(entry);
        return KeepLink({name, target == nullptr ? "" : target, false});
      }
      default:
        return Unsafe(name, "is neither a file, a folder nor a link");
    }
  }

  // Links are made last, so nothing is ever written through one.
  Status CheckName(const std::string& name, std::string_view given) const {
    if (!IsSafeRelativePath(name)) {
      return Unsafe(given,
                    "has a name that leads out of the folder, is too long or is not printable");
    }
    for (size_t slash = name.find('/'); slash != std::string::npos;
         slash = name.find('/', slash + 1)) {
      if (link_names_.contains(name.substr(0, slash))) return Unsafe(given, "lies beyond a link");
    }
    return link_names_.contains(name) ? Unsafe(given, "comes twice") : Status();
  }

  Status KeepLink(Link link) {
    if (link.is_hard) link.target = Tidied(link.target);
    const auto target =
        link.is_hard ? std::optional(link.target) : TargetOf(link.name, link.target);
    const bool is_inside =
        target && (link.is_hard ? IsSafeRelativePath(*target)
                                : target->empty() || IsSafeRelativePath(*target));
    if (!is_inside) return Unsafe(link.name, "is a link that leads out of the folder");
    if (NameExists(root_ / link.name)) return Unsafe(link.name, "comes twice");
    link_names_.insert(link.name);
    links_.push_back(std::move(link));
    return {};
  }

  Status WriteFile(archive_entry* entry, const std::string& name) {
    if (archive_entry_size_is_set(entry) != 0) {
      const int64_t size = archive_entry_size(entry);
      if (size < 0 || size > INT64_MAX - bytes_) return Unsafe(name, "has no possible size");
      TANDEM_RETURN_IF_ERROR(CheckBytes(bytes_ + size, name));
    }
    const fs::path path = root_ / name;
    TANDEM_RETURN_IF_ERROR(MakeFolders(path.parent_path()));
    const int fd =
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return WriteError(path, errno);
    Status written = CopyData(fd, path, name);
    if (::close(fd) != 0 && written.ok()) written = WriteError(path, errno);
    return written;
  }

  Status CopyData(int fd, const fs::path& path, const std::string& name) {
    int64_t end = 0;
    while (true) {
      const void* data = nullptr;
      size_t size = 0;
      int64_t offset = 0;
      const int result = archive_read_data_block(reader_.get(), &data, &size, &offset);
      if (result == ARCHIVE_EOF) break;
      if (result < ARCHIVE_WARN) return Damaged();
      const auto bytes = static_cast<int64_t>(size);
      if (offset < end || offset > INT64_MAX - bytes - bytes_) {
        return Unsafe(name, "has no possible size");
      }
      TANDEM_RETURN_IF_ERROR(CheckBytes(bytes_ + offset + bytes, name));
      const char* from = static_cast<const char*>(data);
      for (size_t done = 0; done < size;) {
        const ssize_t written =
            ::pwrite(fd, from + done, size - done, offset + static_cast<int64_t>(done));
        if (written < 0 && errno != EINTR) return WriteError(path, errno);
        if (written > 0) done += static_cast<size_t>(written);
      }
      end = offset + bytes;
    }
    bytes_ += end;
    return {};
  }

  Status MakeLinks() const {
    for (const Link& link : links_) {
      const fs::path path = root_ / link.name;
      TANDEM_RETURN_IF_ERROR(MakeFolders(path.parent_path()));
      if (link.is_hard) {
        struct stat info{};
        const fs::path target = root_ / link.target;
        if (link_names_.contains(link.target) || ::lstat(target.c_str(), &info) != 0 ||
            !S_ISREG(info.st_mode)) {
          return Unsafe(link.name, "is a link to no file of the archive");
        }
        if (::link(target.c_str(), path.c_str()) != 0) return WriteError(path, errno);
      } else if (::symlink(link.target.c_str(), path.c_str()) != 0) {
        return WriteError(path, errno);
      }
    }
    return CheckLinks();
  }

  // A link to a folder inside may be part of another link's way out.
  Status CheckLinks() const {
    std::error_code error;
    const fs::path root = fs::canonical(root_, error);
    for (const Link& link : links_) {
      const fs::path real = fs::canonical(root_ / link.name, error);
      if (error) return Unsafe(link.name, "is a link to nothing in the archive");
      const auto [end, ignored] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
      if (end != root.end()) return Unsafe(link.name, "is a link that leads out of the folder");
    }
    return {};
  }

  const fs::path archive_;
  const fs::path root_;
  const UnpackLimits limits_;
  const std::unique_ptr<archive, decltype(&archive_read_free)> reader_;
  int64_t by_ratio_ = 0;      // bytes that the archive's length allows
  int64_t free_ = INT64_MAX;  // bytes of the disk at the start
  int64_t entries_ = 0;
  int64_t bytes_ = 0;  // of the files written so far
  std::vector<Link> links_;
  std::set<std::string> link_names_;
};

}  // namespace

UnpackLimits UnpackLimitsOf(const SourceOptions& options) {
  return {.max_bytes = options.max_unpacked_bytes, .max_entries = options.max_archive_entries};
}

Status Unpack(const fs::path& archive, const fs::path& folder, const UnpackLimits& limits) {
  fs::path unfinished = folder;
  unfinished += ".unfinished";
  std::error_code error;
  fs::remove_all(unfinished, error);  // of a process that was killed
  TANDEM_RETURN_IF_ERROR(MakeFolders(unfinished));
  LogInfo("unpacking {} into {}", archive.string(), folder.string());
  Status status = Unpacker(archive, unfinished, limits).Run();
  if (status.ok()) {
    fs::rename(unfinished, folder, error);
    if (error)
      status = FailedPrecondition(folder.string() + ": cannot be made: " + error.message());
  }
  if (!status.ok()) fs::remove_all(unfinished, error);
  return status.Annotate(archive.string());
}

}  // namespace tandem
