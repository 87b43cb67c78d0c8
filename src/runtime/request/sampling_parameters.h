// The range of each sampling parameter: one table for the command line, the wire formats and the
// engine. Constants; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

namespace tandem {

struct SamplingRange {
  std::string_view name;
  double low = 0;
  double high = 0;
  bool above_low = false;  // `low` itself is excluded

  // In the precision that the sampler computes with; false for NaN.
  constexpr bool Contains(double value) const {
    const auto number = static_cast<float>(value);
    const auto least = static_cast<float>(low);
    return (above_low ? number > least : number >= least) && number <= static_cast<float>(high);
  }
};

inline constexpr double kLargestCount = std::numeric_limits<int32_t>::max();

inline constexpr std::array<SamplingRange, 12> kSamplingRanges = {{
    {"temperature", 0, 100},
    {"top_k", 0, kLargestCount},
    {"top_p", 0, 1},
    {"top_p_min", 0, 1},
    {"top_p_decay", 0, 1, true},
    {"top_p_reset_id", -1, kLargestCount},
    {"min_p", 0, 1},
    {"repetition_penalty", 0.01, 100},
    {"presence_penalty", -100, 100},
    {"frequency_penalty", -100, 100},
    {"no_repeat_ngram_size", 0, kLargestCount},
    {"min_tokens", 0, kLargestCount},
}};

// The row of an existing parameter.
consteval SamplingRange SamplingRangeOf(std::string_view name) {
  for (const SamplingRange& range : kSamplingRanges) {
    if (range.name == name) return range;
  }
  throw "there is no such sampling parameter";  // at compile time
}

}  // namespace tandem
