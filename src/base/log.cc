#include "base/log.h"

#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>

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

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    const bool plain = std::getenv("NO_COLOR") != nullptr;
    auto made = spdlog::stderr_color_mt(
        "tandem", plain ? spdlog::color_mode::never : spdlog::color_mode::automatic);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *logger;
}

// Escapes what would break the line, or the JSON string around it.
std::string Escape(std::string_view message, bool json) {
  std::string out;
  out.reserve(message.size());
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (json && (c == '"' || c == '\\')) {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
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

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void WriteLog(LogLevel level, std::string_view message) {
  Logger().log(ToSpdlog(level),
               spdlog::string_view_t(Escape(message, g_format == LogFormat::kJson)));
}

}  // namespace tandem
