#include "apps/cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/log_level.h"

namespace tandem::apps {
namespace {

void Replace(int new_stdout, int new_stderr) {
  std::fflush(stdout);
  std::fflush(stderr);
  ::dup2(new_stdout, STDOUT_FILENO);
  ::dup2(new_stderr, STDERR_FILENO);
  ResetLogColor();
}

}  // namespace

Result<std::unique_ptr<OutputFile>> OutputFile::Open(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) {
    return InvalidArgument(fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
  }
  const int old_stdout = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
  const int old_stderr = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  return std::unique_ptr<OutputFile>(new OutputFile(file, old_stdout, old_stderr));
}

OutputFile::OutputFile(int file, int old_stdout, int old_stderr)
    : old_stdout_(old_stdout), old_stderr_(old_stderr) {
  Replace(file, file);
  ::close(file);
}

OutputFile::~OutputFile() {
  Replace(old_stdout_, old_stderr_);
  ::close(old_stdout_);
  ::close(old_stderr_);
}

}  // namespace tandem::apps
