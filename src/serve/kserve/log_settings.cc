#include "serve/kserve/log_settings.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "base/log_level.h"
#include "base/mutex.h"
#include "base/printable.h"

namespace tandem::serve::kserve {
namespace {

// What the log's level does not hold.
struct Asked {
  Mutex mutex;
  int64_t verbose_level TANDEM_GUARDED_BY(mutex) = 1;  // while lines of kDebug are written
  std::string format TANDEM_GUARDED_BY(mutex) = "default";
};
Asked& GetAsked() {
  static Asked asked;
  return asked;
}

LogLevel LevelOf(bool verbose, bool info, bool warning, bool error) {
  if (verbose) return LogLevel::kDebug;
  if (info) return LogLevel::kInfo;
  if (warning) return LogLevel::kWarning;
  return error ? LogLevel::kError : LogLevel::kOff;
}

Status WrongType(std::string_view name, std::string_view type) {
  return InvalidArgument(fmt::format("log setting '{}' must be {}", Printable(name), type))
      .WithField(name);
}

std::optional<int64_t> NumberOf(const Parameter& value) {
  if (const int64_t* number = std::get_if<int64_t>(&value)) return *number;
  if (const uint64_t* number = std::get_if<uint64_t>(&value)) {
    return static_cast<int64_t>(*number);
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::pair<std::string_view, Parameter>> LogSettings() {
  Asked& asked = GetAsked();
  const MutexLock lock(asked.mutex);
  return {{"log_file", std::string()},
          {"log_info", LogEnabled(LogLevel::kInfo)},
          {"log_warning", LogEnabled(LogLevel::kWarning)},
          {"log_error", LogEnabled(LogLevel::kError)},
          {"log_verbose_level", LogEnabled(LogLevel::kDebug) ? asked.verbose_level : int64_t{0}},
          {"log_format", asked.format}};
}

Status SetLogSettings(const Parameters& settings) {
  Asked& asked = GetAsked();
  const MutexLock lock(asked.mutex);
  bool info = LogEnabled(LogLevel::kInfo);
  bool warning = LogEnabled(LogLevel::kWarning);
  bool error = LogEnabled(LogLevel::kError);
  int64_t verbose = LogEnabled(LogLevel::kDebug) ? asked.verbose_level : 0;
  std::string format = asked.format;
  for (const auto& [name, value] : settings) {
    const bool* truth = std::get_if<bool>(&value);
    const std::string* text = std::get_if<std::string>(&value);
    if (name == "log_info" || name == "log_warning" || name == "log_error") {
      if (truth == nullptr) return WrongType(name, "true or false");
      (name == "log_info" ? info : name == "log_warning" ? warning : error) = *truth;
    } else if (name == "log_verbose_level") {
      const std::optional<int64_t> level = NumberOf(value);
      if (!level || *level < 0) return WrongType(name, "a number from 0");
      verbose = *level;
    } else if (name == "log_format") {
      if (text == nullptr || (*text != "default" && *text != "ISO8601")) {
        return WrongType(name, "default or ISO8601");
      }
      format = *text;
    } else if (name == "log_file") {
      if (text == nullptr) return WrongType(name, "a string");
      if (!text->empty()) {
        return Unimplemented("log setting 'log_file': the log goes to stderr").WithField(name);
      }
    } else {
      return InvalidArgument(fmt::format("there is no log setting '{}'", Printable(name)))
          .WithField(name);
    }
  }
  if (verbose > 0) asked.verbose_level = verbose;
  asked.format = format;
  SetLogLevel(LevelOf(verbose > 0, info, warning, error));
  return {};
}

}  // namespace tandem::serve::kserve
