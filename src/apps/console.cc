#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "apps/command.h"

namespace tandem::apps {

Console::Console(bool json) : json_(json), terminal_(::isatty(STDERR_FILENO) == 1) {}

void Console::Say(std::string_view line) const {
  if (json_) return;
  Write(std::string(line) + "\n");
}

void Console::SayPart(std::string_view text) const {
  if (!json_) Write(text);
}

void Console::ResultPart(std::string_view text) const {
  if (json_) Write(text);
}

void Console::Write(std::string_view text) const {
  if (!status_.ok()) return;
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) {
    status_ = FailedPrecondition(std::string("stdout: cannot write: ") + std::strerror(errno));
  }
}

size_t Console::Width() {
  constexpr size_t kDefault = 80;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return std::clamp<size_t>(size.ws_col, 40, 120);
}

void Console::Progress(std::string_view what, double done) const {
  if (json_ || !terminal_) return;
  const std::string line = fmt::format("\r{} {:3.0f} %{}", what, done * 100, done >= 1 ? "\n" : "");
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace tandem::apps
