#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "apps/cli/command.h"

namespace tandem::apps {

Console::Console(bool json, LogFormat log_format, const Clock& clock)
    : json_(json),
      terminal_(::isatty(STDERR_FILENO) == 1),
      lines_(log_format == LogFormat::kText),
      clock_(clock) {}

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
  if (!written && errno == EPIPE) {
    status_ = Cancelled("stdout: its reader has gone").WithField("stdout");
  } else if (!written) {
    status_ = FailedPrecondition(std::string("stdout: cannot write: ") + std::strerror(errno));
  }
}

size_t Console::Width() {
  constexpr size_t kDefault = 80;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return std::clamp<size_t>(size.ws_col, 40, 120);
}

bool Console::IsDue(std::string_view what, double done) const {
  constexpr Nanos kShortest = std::chrono::seconds(10), kLongest = std::chrono::minutes(1);
  constexpr double kStep = 0.1;
  if (!lines_) return false;
  const MutexLock lock(mutex_);
  const Nanos now = clock_.Now();
  if (what != told_.what || done < told_.done) {  // another work begins
    told_ = {.what = std::string(what), .done = done, .time = now};
    return false;
  }
  const Nanos waited = now - told_.time;
  const bool is_end = done >= 1.0 && told_.done < 1.0 && told_.any;
  const bool is_step = waited >= kShortest && done - told_.done >= kStep;
  if (!is_end && !is_step && waited < kLongest) return false;
  told_.done = done;
  told_.time = now;
  told_.any = true;
  return true;
}

void Console::Progress(std::string_view what, double done) const {
  if (json_ || !(terminal_ || IsDue(what, done))) return;
  const std::string text = fmt::format("{} {:3.0f} %", what, done * 100);
  const std::string line =
      terminal_ ? "\r" + text + (done >= 1 ? "\n" : "") : "tandem: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace tandem::apps
