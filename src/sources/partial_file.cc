#include "sources/partial_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeadBytes = 128;  // of NAME.parts, before a number of 8 bytes for each part

fs::path Beside(const fs::path& path, const char* extension) {
  fs::path other = path;
  other += extension;
  return other;
}

Status ErrorAt(const fs::path& path, int error) {
  const std::string sentence = path.string() + ": cannot be written: " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT) {
    return ResourceExhausted(
        sentence +
        "; free some space, or name a folder on a larger disk with --download_dir. "
        "What has arrived is kept, and the next start goes on from there");
  }
  if (error == EFBIG) {
    return ResourceExhausted(sentence + "; raise the limit (`ulimit -f`), or use another disk");
  }
  return FailedPrecondition(sentence);
}

Status SyncFolder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrorAt(folder, errno);
  ::fsync(fd);  // not every file system can; the rename has happened
  ::close(fd);
  return {};
}

}  // namespace

PartialFile::PartialFile(fs::path destination, int64_t bytes, int64_t part_bytes)
    : destination_(std::move(destination)),
      bytes_path_(Beside(destination_, ".partial")),
      parts_path_(Beside(destination_, ".parts")),
      bytes_(bytes),
      part_bytes_(part_bytes),
      done_(static_cast<size_t>((bytes + part_bytes - 1) / part_bytes)) {}

PartialFile::~PartialFile() { CloseFiles(); }

Status PartialFile::OpenFiles() {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  bytes_fd_ = ::open(bytes_path_.c_str(), kFlags, 0644);
  if (bytes_fd_ < 0) return ErrorAt(bytes_path_, errno);
  parts_fd_ = ::open(parts_path_.c_str(), kFlags, 0644);
  return parts_fd_ < 0 ? ErrorAt(parts_path_, errno) : Status();
}

void PartialFile::CloseFiles() {
  for (int* fd : {&bytes_fd_, &parts_fd_}) {
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  }
}

Result<std::unique_ptr<PartialFile>> PartialFile::Open(const fs::path& destination,
                                                       std::string_view identity, int64_t bytes,
                                                       int64_t part_bytes) {
  TANDEM_CHECK(bytes >= 0 && part_bytes > 0, "the sizes of a download");
  std::unique_ptr<PartialFile> file(new PartialFile(destination, bytes, part_bytes));
  std::string head =
      fmt::format("tandem parts 1 {} {} {}", Sha256Hex(identity).substr(0, 32), bytes, part_bytes);
  head.resize(kHeadBytes);
  TANDEM_RETURN_IF_ERROR(file->OpenFiles());
  if (!file->Continue(head)) TANDEM_RETURN_IF_ERROR(file->Begin(head));
  file->CloseFiles();
  return file;
}

Status PartialFile::Begin(std::string_view head) {
  std::ranges::fill(done_, 0);
  const auto table = static_cast<off_t>(kHeadBytes + done_.size() * sizeof(int64_t));
  if (::ftruncate(parts_fd_, 0) != 0 || ::ftruncate(parts_fd_, table) != 0) {
    return ErrorAt(parts_path_, errno);
  }
  if (::ftruncate(bytes_fd_, 0) != 0 || ::ftruncate(bytes_fd_, bytes_) != 0) {
    return ErrorAt(bytes_path_, errno);
  }
  return WriteAt(parts_fd_, parts_path_, 0, std::as_bytes(std::span(head)));
}

bool PartialFile::Continue(std::string_view head) {
  struct stat info{};
  if (::fstat(bytes_fd_, &info) != 0 || info.st_size != bytes_) return false;
  std::string found(kHeadBytes, '\0');
  const auto table = static_cast<ssize_t>(done_.size() * sizeof(int64_t));
  if (::pread(parts_fd_, found.data(), kHeadBytes, 0) != static_cast<ssize_t>(kHeadBytes) ||
      found != head || ::pread(parts_fd_, done_.data(), table, kHeadBytes) != table) {
    return false;
  }
  for (int part = 0; part < num_parts(); ++part) {
    if (PartDone(part) < 0 || PartDone(part) > PartSize(part)) return false;
  }
  return true;
}

int64_t PartialFile::PartSize(int part) const {
  return std::min(part_bytes_, bytes_ - PartBegin(part));
}

int64_t PartialFile::BytesMissing() const {
  return bytes_ - std::accumulate(done_.begin(), done_.end(), int64_t{0});
}

Status PartialFile::WriteAt(int fd, const fs::path& path, int64_t offset,
                            std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrorAt(path, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return {};
}

Status PartialFile::Append(int part, std::span<const std::byte> bytes) {
  int64_t& done = done_[static_cast<size_t>(part)];
  const auto size = static_cast<int64_t>(bytes.size());
  TANDEM_CHECK(done + size <= PartSize(part), "more bytes than the part has");
  std::call_once(opening_, [this] { opened_ = OpenFiles(); });
  TANDEM_RETURN_IF_ERROR(opened_);
  TANDEM_RETURN_IF_ERROR(WriteAt(bytes_fd_, bytes_path_, PartBegin(part) + done, bytes));
  done += size;
  const auto slot = static_cast<int64_t>(kHeadBytes + static_cast<size_t>(part) * sizeof(int64_t));
  return WriteAt(parts_fd_, parts_path_, slot, std::as_bytes(std::span(&done, 1)));
}

void PartialFile::Remove() {
  ::unlink(parts_path_.c_str());
  ::unlink(bytes_path_.c_str());
}

void PartialFile::RemoveIfEmpty() {
  if (BytesMissing() == bytes_) Remove();
}

Status PartialFile::Commit(const std::optional<ExpectedDigest>& digest) {
  TANDEM_CHECK(BytesMissing() == 0, "a part is missing");
  if (digest) {
    if (const Status right = CheckDigest(bytes_path_, *digest); !right.ok()) {
      Remove();
      return right;
    }
  }
  // The disk may turn out to be full only here.
  std::call_once(opening_, [this] { opened_ = OpenFiles(); });
  TANDEM_RETURN_IF_ERROR(opened_);
  if (::fsync(bytes_fd_) != 0 && errno != EINVAL) return ErrorAt(bytes_path_, errno);
  CloseFiles();
  if (::rename(bytes_path_.c_str(), destination_.c_str()) != 0) {
    return ErrorAt(destination_, errno);
  }
  ::unlink(parts_path_.c_str());
  return SyncFolder(destination_.parent_path());
}

}  // namespace tandem
