// The table of sampling parameters: the name, members and range of each. The wire formats, the
// command line, generation_config.json and the checks loop over its rows. Constants; any thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/sampling.h"

namespace tandem {

// Sampling parameters as a client gives them. One that is left out takes the default of the model
// or the route, else the initial value of its member in SamplingParams.
struct SamplingFields {
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> top_p_min;
  std::optional<double> top_p_decay;
  std::optional<int64_t> top_p_reset_id;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<int64_t> no_repeat_ngram_size;
  std::optional<int64_t> min_tokens;
};

template <typename Given, typename Value>
struct SamplingMembers {
  std::optional<Given> SamplingFields::* given;
  Value SamplingParams::* value;
};
using NumberMembers = SamplingMembers<double, float>;
using IntegerMembers = SamplingMembers<int64_t, int32_t>;

struct SamplingParameter {
  std::string_view name;
  std::variant<NumberMembers, IntegerMembers> members;
  double low = 0;
  double high = 0;
  bool above_low = false;          // `low` itself is excluded
  bool has_model_default = false;  // generation_config.json may set it
  std::string_view meaning;        // the help of `tandem run`, where it is an option

  constexpr bool is_integer() const { return std::holds_alternative<IntegerMembers>(members); }

  // A number is compared in the precision that the sampler computes with; false for NaN.
  template <typename Number>
  constexpr bool Allows(Number value) const {
    using Compared = std::conditional_t<std::is_integral_v<Number>, int64_t, float>;
    const auto number = static_cast<Compared>(value);
    const auto least = static_cast<Compared>(low);
    return (above_low ? number > least : number >= least) && number <= static_cast<Compared>(high);
  }
  // "a number from 0 to 100"
  std::string AllowedValues() const {
    const std::string_view kind = is_integer() ? "an integer" : "a number";
    return above_low ? fmt::format("{} above {} and at most {}", kind, low, high)
                     : fmt::format("{} from {} to {}", kind, low, high);
  }
};

inline constexpr double kLargestCount = std::numeric_limits<int32_t>::max();

inline constexpr SamplingParameter kSamplingParameters[] = {
    {.name = "temperature",
     .members = NumberMembers{&SamplingFields::temperature, &SamplingParams::temperature},
     .low = 0,
     .high = 100,
     .has_model_default = true,
     .meaning = "Divides the logits before a token is drawn; 1 when left out"},
    {.name = "top_k",
     .members = IntegerMembers{&SamplingFields::top_k, &SamplingParams::top_k},
     .low = -1,  // -1 switches it off in some clients, 0 in others
     .high = kLargestCount,
     .has_model_default = true,
     .meaning = "Draw among the k likeliest tokens; greedy when neither this nor top_p is given"},
    {.name = "top_p",
     .members = NumberMembers{&SamplingFields::top_p, &SamplingParams::top_p},
     .low = 0,
     .high = 1,
     .has_model_default = true,
     .meaning = "Draw among the likeliest tokens whose probabilities add up to this"},
    {.name = "top_p_min",
     .members = NumberMembers{&SamplingFields::top_p_min, &SamplingParams::top_p_min},
     .low = 0,
     .high = 1,
     .meaning = "The least value to which top_p_decay lowers top_p; 0.000001 when left out"},
    {.name = "top_p_decay",
     .members = NumberMembers{&SamplingFields::top_p_decay, &SamplingParams::top_p_decay},
     .low = 0,
     .high = 1,
     .above_low = true,
     .meaning = "Multiplies top_p after each token; 1 when left out"},
    {.name = "top_p_reset_id",
     .members = IntegerMembers{&SamplingFields::top_p_reset_id, &SamplingParams::top_p_reset_id},
     .low = -1,
     .high = kLargestCount,
     .meaning = "Token after which top_p has its first value again; none when left out"},
    {.name = "min_p",
     .members = NumberMembers{&SamplingFields::min_p, &SamplingParams::min_p},
     .low = 0,
     .high = 1,
     .has_model_default = true,
     .meaning = "Draw among tokens at least this share as likely as the likeliest; 0 when left "
                "out"},
    {.name = "repetition_penalty",
     .members =
         NumberMembers{&SamplingFields::repetition_penalty, &SamplingParams::repetition_penalty},
     .low = 0.01,
     .high = 100,
     .has_model_default = true,
     .meaning = "Above 1 makes tokens of the prompt and the answer less likely; 1 when left out"},
    {.name = "presence_penalty",
     .members = NumberMembers{&SamplingFields::presence_penalty, &SamplingParams::presence_penalty},
     .low = -100,
     .high = 100,
     .meaning = "Subtracted from the logits of tokens that the answer has; 0 when left out"},
    {.name = "frequency_penalty",
     .members =
         NumberMembers{&SamplingFields::frequency_penalty, &SamplingParams::frequency_penalty},
     .low = -100,
     .high = 100,
     .meaning = "The same for each time that the answer has the token; 0 when left out"},
    {.name = "no_repeat_ngram_size",
     .members = IntegerMembers{&SamplingFields::no_repeat_ngram_size,
                               &SamplingParams::no_repeat_ngram_size},
     .low = 0,
     .high = kLargestCount,
     .meaning = "No sequence of this many tokens is generated twice; off when left out"},
    {.name = "min_tokens",
     .members = IntegerMembers{&SamplingFields::min_tokens, &SamplingParams::min_tokens},
     .low = 0,
     .high = kLargestCount,
     .meaning = "Output tokens at least; 0 when left out"},
};

// Calls visit(parameter, members) for every row; members are NumberMembers or IntegerMembers.
template <typename Visit>
void ForEachSamplingParameter(Visit&& visit) {
  for (const SamplingParameter& parameter : kSamplingParameters) {
    std::visit([&](const auto& members) { visit(parameter, members); }, parameter.members);
  }
}

}  // namespace tandem
