// FileLock: a name in the file system that one owner holds at a time, among the processes of a
// machine and within one. The system lets go of it when its owner ends, however that ends. The file
// exists only while the lock is held, or after its owner was killed, when the next one takes it
// over. Owned by one thread.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"

namespace tandem {

class FileLock {
 public:
  // UNAVAILABLE if another owner holds it. Always succeeds where the file system has no locks.
  static Result<std::unique_ptr<FileLock>> Take(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  FileLock(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::filesystem::path path_;
  const int fd_;
};

}  // namespace tandem
