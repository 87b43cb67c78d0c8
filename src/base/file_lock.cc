#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace tandem {
namespace {

// An owner that ends removes its file: whoever opened that before and locks it after holds a file
// without a name.
bool IsNamed(int fd, const std::filesystem::path& path) {
  struct stat held{}, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

int Lock(int fd) {
  int result = 0;
  do {
    result = ::flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace

Result<std::unique_ptr<FileLock>> FileLock::Take(const std::filesystem::path& path) {
  constexpr int kTries = 100;  // each is lost to an owner that ended just then
  for (int tries = 0; tries < kTries; ++tries) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
      return FailedPrecondition(path.string() + ": cannot create: " + std::strerror(errno));
    }
    const int failed = Lock(fd);
    const bool is_held = failed == EWOULDBLOCK;
    if (!is_held && (failed != 0 || IsNamed(fd, path))) {
      return std::unique_ptr<FileLock>(new FileLock(path, fd));
    }
    ::close(fd);
    if (is_held) break;
  }
  return Unavailable(path.string() + ": is locked by another process");
}

FileLock::~FileLock() {
  // While it is locked: nobody else holds the file that is removed.
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace tandem
