// SharedObject: a POSIX shared memory object as a client makes it, removed with its owner. For
// tests; one thread.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>

#include "base/check.h"

namespace tandem::serve {

class SharedObject {
 public:
  explicit SharedObject(std::string_view content) : key_(NewKey()) {
    fd_ = ::shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    TANDEM_CHECK(fd_ >= 0, "shared memory cannot be made");
    const ssize_t put = ::pwrite(fd_, content.data(), content.size(), 0);
    TANDEM_CHECK(put == static_cast<ssize_t>(content.size()), "shared memory cannot be written");
  }
  ~SharedObject() {
    ::close(fd_);
    ::shm_unlink(key_.c_str());
  }
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  const std::string& key() const { return key_; }
  std::string Content() const {
    struct stat status{};
    TANDEM_CHECK(::fstat(fd_, &status) == 0, "shared memory without a size");
    std::string content(static_cast<size_t>(status.st_size), '\0');
    const ssize_t got = ::pread(fd_, content.data(), content.size(), 0);
    TANDEM_CHECK(got == status.st_size, "shared memory cannot be read");
    return content;
  }
  void Resize(size_t bytes) const {
    TANDEM_CHECK(::ftruncate(fd_, static_cast<off_t>(bytes)) == 0, "the size cannot be changed");
  }

 private:
  static std::string NewKey() {
    static std::atomic<int> next{0};
    return fmt::format("/tandem_test_{}_{}", ::getpid(), next++);
  }

  const std::string key_;
  int fd_ = -1;
};

}  // namespace tandem::serve
