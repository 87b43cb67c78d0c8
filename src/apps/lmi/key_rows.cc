#include "apps/lmi/key_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::apps::lmi_rows {
namespace {

// "auto|trtllm" as "auto, trtllm".
std::string Listed(std::string_view words) {
  std::string list(words);
  for (size_t at = 0; (at = list.find('|', at)) != std::string::npos;) list.replace(at, 1, ", ");
  return list;
}

// "False" and "0" are "false".
std::string WordOf(const std::string& value, LmiValue type) {
  if (type != LmiValue::kBool) return value;
  const Result<bool> flag = ParseBool(value);
  return flag.ok() ? (*flag ? "true" : "false") : value;
}

}  // namespace

bool IsAmong(std::string_view value, std::string_view words) {
  while (!words.empty()) {
    const size_t bar = std::min(words.find('|'), words.size());
    if (value == words.substr(0, bar)) return true;
    words.remove_prefix(std::min(bar + 1, words.size()));
  }
  return false;
}

Result<int64_t> ParseInteger(const std::string& value, int64_t min, int64_t max) {
  int64_t number = 0;
  const char* const stop = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), stop, number);
  if (error == std::errc() && end == stop && number >= min && number <= max) return number;
  return InvalidArgument(
      fmt::format("must be an integer from {} to {}, not '{}'", min, max, value));
}

Result<double> ParseNumber(const std::string& value, double min, double max) {
  double number = 0;
  const char* const stop = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), stop, number);
  const bool is_number = error == std::errc() && end == stop && std::isfinite(number);
  if (is_number && number >= min && number <= max) return number;
  return InvalidArgument(fmt::format("must be a number from {} to {}, not '{}'", min, max, value));
}

Result<bool> ParseBool(const std::string& value) {
  std::string word = value;
  for (char& c : word) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (word == "true" || word == "1") return true;
  if (word == "false" || word == "0") return false;
  return InvalidArgument(fmt::format("must be true or false, not '{}'", value));
}

LmiKey Setting(std::string_view name, LmiValue type, Defaults defaults, std::string note,
               std::function<Status(const std::string& value, LmiSettings& settings)> take,
               std::string option) {
  return {.name = name,
          .type = type,
          .defaults = std::move(defaults),
          .effect = option.empty() ? LmiEffect::kSetting : LmiEffect::kOption,
          .option = std::move(option),
          .note = std::move(note),
          .take = std::move(take)};
}

LmiKey Option(std::string_view name, LmiValue type, Defaults defaults, std::string option,
              std::string note) {
  return Converted(name, type, std::move(defaults), std::move(option), std::move(note),
                   [](const std::string& value) -> Result<std::string> { return value; });
}

LmiKey Converted(std::string_view name, LmiValue type, Defaults defaults, std::string option,
                 std::string note,
                 std::function<Result<std::string>(const std::string& value)> convert) {
  LmiKey key{.name = name,
             .type = type,
             .defaults = std::move(defaults),
             .effect = LmiEffect::kOption,
             .option = std::move(option),
             .note = std::move(note),
             .take = {}};
  key.take = [option = key.option, is_bool = type == LmiValue::kBool, convert = std::move(convert)](
                 const std::string& value, LmiSettings& settings) -> Status {
    std::string text = value;
    if (is_bool) {
      TANDEM_ASSIGN_OR_RETURN(const bool flag, ParseBool(value));
      text = flag ? "true" : "false";
    }
    TANDEM_ASSIGN_OR_RETURN(settings.options[option], convert(text));
    return {};
  };
  return key;
}

LmiKey Overlap(std::string_view name, Defaults defaults, std::string note) {
  return Converted(name, LmiValue::kBool, std::move(defaults),
                   EngineOption<&EngineOptions::steps_in_flight>(), std::move(note),
                   [](const std::string& value) -> Result<std::string> {
                     return std::string(value == "true" ? "1" : "0");
                   });
}

LmiKey Stages(std::string_view name, Defaults defaults) {
  return Converted(name, LmiValue::kInteger, std::move(defaults), "pipeline_parallel_size",
                   "stages of layers, each on as many GPUs as the tensor parallel degree says",
                   [](const std::string& value) -> Result<std::string> {
                     TANDEM_ASSIGN_OR_RETURN(const int64_t stages, ParseInteger(value, 1, 64));
                     return std::to_string(stages);
                   });
}

LmiKey Ignored(std::string_view name, Defaults defaults, std::string why,
               std::string_view neutral) {
  LmiKey key{.name = name,
             .type = LmiValue::kWord,
             .defaults = std::move(defaults),
             .effect = LmiEffect::kNone,
             .option = {},
             .note = std::move(why),
             .take = {}};
  key.neutral = neutral;
  return key;
}

LmiKey Only(std::string_view name, LmiValue type, Defaults defaults, std::string_view neutral,
            std::string refusal) {
  return {.name = name,
          .type = type,
          .defaults = std::move(defaults),
          .effect = LmiEffect::kLimited,
          .option = {},
          .note = neutral.empty()
                      ? fmt::format("refused: it {}", refusal)
                      : fmt::format("only {}: another value {}", Listed(neutral), refusal),
          .take = [type, neutral, refusal](const std::string& value, LmiSettings&) -> Status {
            if (IsAmong(WordOf(value, type), neutral)) return {};
            return InvalidArgument(
                fmt::format("'{}' {}{}", value, refusal,
                            neutral.empty() ? "" : fmt::format("; it may be {}", Listed(neutral))));
          }};
}

LmiKey Except(std::string_view name, LmiValue type, Defaults defaults, std::string_view refused,
              std::string refusal, std::string note) {
  return {.name = name,
          .type = type,
          .defaults = std::move(defaults),
          .effect = LmiEffect::kLimited,
          .option = {},
          .note = fmt::format("{}. `{}` {}", note, refused, refusal),
          .take = [type, refused, refusal](const std::string& value, LmiSettings&) -> Status {
            if (!IsAmong(WordOf(value, type), refused)) return {};
            return InvalidArgument(fmt::format("'{}' {}", value, refusal));
          }};
}

LmiKey WithDefaultSet(LmiKey key) {
  key.sets_default = true;
  return key;
}

LmiKey WithDefaultOnGpu(LmiKey key) {
  key.sets_default = key.only_on_gpu = true;
  return key;
}

}  // namespace tandem::apps::lmi_rows
