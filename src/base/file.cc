#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tandem {
namespace {

Status ErrnoStatus(const std::filesystem::path& path, std::string_view what) {
  const int error = errno;
  const Code code = error == ENOENT ? Code::kNotFound : Code::kFailedPrecondition;
  return {code, path.string() + ": " + std::string(what) + ": " + std::strerror(error)};
}

// Owns a descriptor until Release().
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(const_cast<std::byte*>(data_), size_);
}

bool NameExists(const std::filesystem::path& path) {
  struct stat info{};
  return ::lstat(path.c_str(), &info) == 0;
}

Result<std::shared_ptr<MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return ErrnoStatus(path, "cannot open");
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(path, "cannot stat");
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path.string() + ": not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (mapped == MAP_FAILED) return ErrnoStatus(path, "cannot map");
    data = static_cast<const std::byte*>(mapped);
  }
  return std::shared_ptr<MappedFile>(new MappedFile(path, data, size));
}

Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t max_bytes) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const auto bytes = file->bytes();
  if (bytes.size() > max_bytes) {
    return InvalidArgument(path.string() + ": " + std::to_string(bytes.size()) +
                           " bytes, more than the " + std::to_string(max_bytes) + " allowed");
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::vector<std::string>> ReadLines(const std::filesystem::path& path, size_t max_bytes) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, max_bytes));
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  std::vector<std::string> lines;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

AtomicFileWriter::AtomicFileWriter(std::filesystem::path path, std::filesystem::path temporary,
                                   Unfinished unfinished, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), unfinished_(unfinished), fd_(fd) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (unfinished_ == Unfinished::kRemove) ::unlink(temporary_.c_str());
}

Result<std::unique_ptr<AtomicFileWriter>> AtomicFileWriter::Create(
    const std::filesystem::path& path, Unfinished unfinished) {
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return InvalidArgument(path.string() + ": exists and is not a regular file");
  }
  const std::filesystem::path temporary =
      path.string() + (unfinished == Unfinished::kKeep ? ".partial" : ".tmp");
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(temporary, "cannot create");
  return std::unique_ptr<AtomicFileWriter>(new AtomicFileWriter(path, temporary, unfinished, fd));
}

Status AtomicFileWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(temporary_, "cannot write");
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status AtomicFileWriter::Append(std::string_view text) {
  return Append(std::as_bytes(std::span(text.data(), text.size())));
}

Status AtomicFileWriter::Overwrite(uint64_t offset, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd_, text.data(), text.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(temporary_, "cannot write");
    }
    text.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Status AtomicFileWriter::Commit() {
  TANDEM_CHECK(fd_ >= 0, "committed twice");
  if (::fsync(fd_) != 0) return ErrnoStatus(temporary_, "cannot sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoStatus(path_, "cannot rename");
  ::close(std::exchange(fd_, -1));
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const Descriptor dir(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (dir.get() < 0 || ::fsync(dir.get()) != 0) return ErrnoStatus(folder, "cannot sync");
  return {};
}

Status WriteFileAtomically(const std::filesystem::path& path, std::string_view text) {
  TANDEM_ASSIGN_OR_RETURN(const auto writer, AtomicFileWriter::Create(path));
  TANDEM_RETURN_IF_ERROR(writer->Append(text));
  return writer->Commit();
}

}  // namespace tandem
