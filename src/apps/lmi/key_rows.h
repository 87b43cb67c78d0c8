// How the rows of LmiKeys are made, one function for each kind of row. For the files with the
// tables only. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/lmi/keys.h"
#include "runtime/option_rows.h"

namespace tandem::apps::lmi_rows {

using Defaults = std::vector<LmiDefault>;

// "must be an integer from 1 to 8, not 'x'"
Result<int64_t> ParseInteger(const std::string& value, int64_t min, int64_t max);
Result<double> ParseNumber(const std::string& value, double min, double max);
Result<bool> ParseBool(const std::string& value);

template <auto kField>
std::string EngineOption() {
  return std::string(EngineOptionRows().RowOf<kField>().name);
}

// Whether `words`, "auto|trtllm", has the value.
bool IsAmong(std::string_view value, std::string_view words);

// Sets an option to the value as it is.
LmiKey Option(std::string_view name, LmiValue type, Defaults defaults, std::string option,
              std::string note = {});
// Sets an option to what `convert` makes of the value.
LmiKey Converted(std::string_view name, LmiValue type, Defaults defaults, std::string option,
                 std::string note,
                 std::function<Result<std::string>(const std::string& value)> convert);
// Whether a step is prepared while another one runs.
LmiKey Overlap(std::string_view name, Defaults defaults, std::string note);
// Stages that the model is split into, each of as many ranks as option.tensor_parallel_degree says.
LmiKey Stages(std::string_view name, Defaults defaults);
// Without effect, because ...
LmiKey Ignored(std::string_view name, Defaults defaults, std::string why,
               std::string_view neutral = {});
// Takes the values in `neutral` ("auto|trtllm"), and refuses all others: `refusal` follows the
// value.
LmiKey Only(std::string_view name, LmiValue type, Defaults defaults, std::string_view neutral,
            std::string refusal);
// Refuses `refused`, and ignores all other values.
LmiKey Except(std::string_view name, LmiValue type, Defaults defaults, std::string_view refused,
              std::string refusal, std::string note);

// Sets a member of LmiSettings, and `option` if there is one.
LmiKey Setting(std::string_view name, LmiValue type, Defaults defaults, std::string note,
               std::function<Status(const std::string& value, LmiSettings& settings)> take,
               std::string option = {});

// The same for a member of that type. kField is a function from LmiSettings& to the member.
template <auto kField>
LmiKey Text(std::string_view name, const Defaults& defaults, const std::string& note) {
  return Setting(name, LmiValue::kText, defaults, note,
                 [](const std::string& value, LmiSettings& settings) -> Status {
                   std::invoke(kField, settings) = value;
                   return {};
                 });
}

template <auto kField>
LmiKey Bool(std::string_view name, const Defaults& defaults, const std::string& note) {
  return Setting(name, LmiValue::kBool, defaults, note,
                 [](const std::string& value, LmiSettings& settings) -> Status {
                   TANDEM_ASSIGN_OR_RETURN(std::invoke(kField, settings), ParseBool(value));
                   return {};
                 });
}

template <auto kField>
LmiKey Integer(std::string_view name, const Defaults& defaults, int64_t min, int64_t max,
               const std::string& note, const std::string& option = {}) {
  return Setting(
      name, LmiValue::kInteger, defaults, note,
      [min, max](const std::string& value, LmiSettings& settings) -> Status {
        TANDEM_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(value, min, max));
        auto& field = std::invoke(kField, settings);
        field = static_cast<std::remove_cvref_t<decltype(field)>>(number);
        return {};
      },
      option);
}

LmiKey WithDefaultSet(LmiKey key);
LmiKey WithDefaultOnGpu(LmiKey key);

// The tables.
std::span<const LmiKey> ModelKeys();
std::span<const LmiKey> TrtLlmKeys();
std::span<const LmiKey> LlmApiKeys();
std::span<const LmiKey> QuantizationKeys();
std::span<const LmiKey> ServerKeys();

}  // namespace tandem::apps::lmi_rows
