// Leveled log lines on stderr, as text or as one JSON object per line. Never pass a prompt, an
// output or a key: lines carry facts about the service only. Safe on any thread; only log.cc
// includes spdlog.
#pragma once

#include <fmt/core.h>

#include <string_view>

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat { kText, kJson };

// Called once, early in main(); before that, lines of kInfo and above are written as text.
void ConfigureLog(LogLevel level, LogFormat format);
bool LogEnabled(LogLevel level);
// Control characters in `message` are escaped, so that a line is always one line.
void WriteLog(LogLevel level, std::string_view message);

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(level)) WriteLog(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace tandem
