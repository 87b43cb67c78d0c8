#include "base/log.h"

#include "base/log_level.h"

#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "base/printable.h"

namespace tandem {
namespace {

LogFormat g_format = LogFormat::kText;

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

// Automatic: where stderr is a terminal when the mode is set.
spdlog::color_mode ColorMode() {
  const bool plain = std::getenv("NO_COLOR") != nullptr;
  return plain ? spdlog::color_mode::never : spdlog::color_mode::automatic;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = spdlog::stderr_color_mt("tandem", ColorMode());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *logger;
}

// For the string of a JSON line.
std::string EscapeQuotes(std::string_view message) {
  std::string out;
  out.reserve(message.size());
  for (const char c : message) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

void ConfigureLog(LogLevel level, LogFormat format) {
  g_format = format;
  if (format == LogFormat::kJson) {
    Logger().set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})");
  }
  Logger().set_level(ToSpdlog(level));
}

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

void ResetLogColor() {
  static_cast<spdlog::sinks::stderr_color_sink_mt&>(*Logger().sinks().front())
      .set_color_mode(ColorMode());
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void WriteLog(LogLevel level, std::string_view message) {
  const std::string line = Printable(message);
  Logger().log(ToSpdlog(level),
               spdlog::string_view_t(g_format == LogFormat::kJson ? EscapeQuotes(line) : line));
}

}  // namespace tandem
