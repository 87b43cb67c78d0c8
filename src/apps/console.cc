#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "apps/command.h"

namespace tandem::apps {
namespace {

constexpr std::chrono::seconds kSilence{2};

void WriteToStderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

Console::Console(bool json) : json_(json), terminal_(::isatty(STDERR_FILENO) == 1) {}

void Console::Say(std::string_view line) const {
  if (json_) return;
  Write(std::string(line) + "\n");
}

void Console::SayPart(std::string_view text) const {
  if (!json_) Write(text);
}

void Console::Result(std::string_view json_object) const {
  if (json_) Write(std::string(json_object) + "\n");
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

void Console::Progress(std::string_view what, double done) {
  if (json_) return;
  const int percent = static_cast<int>(std::lround(done * 100));
  if (terminal_) {
    WriteToStderr(fmt::format("\r{} {:3d} %{}", what, percent, done >= 1 ? "\n" : ""));
    return;
  }
  // Short work says nothing on its way; long work a line every tenth.
  const auto now = std::chrono::steady_clock::now();
  if (what != task_) {
    task_ = what;
    task_started_ = now;
    last_tenth_ = 0;
  }
  const int tenth = percent / 10;
  if (tenth == last_tenth_ || now - task_started_ < kSilence) return;
  last_tenth_ = tenth;
  WriteToStderr(fmt::format("{} {} %\n", what, percent));
}

}  // namespace tandem::apps
