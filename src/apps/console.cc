#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "apps/command.h"

namespace tandem::apps {
namespace {

constexpr std::chrono::seconds kSilence{2};

void Write(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

Console::Console(bool json) : json_(json), terminal_(::isatty(STDERR_FILENO) == 1) {}

void Console::Say(std::string_view line) const {
  if (json_) return;
  Write(stdout, line);
  Write(stdout, "\n");
}

void Console::SayPart(std::string_view text) const {
  if (!json_) Write(stdout, text);
}

void Console::Result(std::string_view json_object) const {
  if (!json_) return;
  Write(stdout, json_object);
  Write(stdout, "\n");
}

void Console::Progress(std::string_view what, double done) {
  if (json_) return;
  const int percent = static_cast<int>(std::lround(done * 100));
  if (terminal_) {
    Write(stderr, fmt::format("\r{} {:3d} %{}", what, percent, done >= 1 ? "\n" : ""));
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
  Write(stderr, fmt::format("{} {} %\n", what, percent));
}

}  // namespace tandem::apps
