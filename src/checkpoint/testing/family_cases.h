// The cases of family_fixtures.h through a decoder, and how far its logits are from the authors'.
// Test code.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoint/testing/family_fixtures.h"
#include "model/prompt_rules.h"
#include "model/testing/decoder_driver.h"

namespace tandem {

using Logits = std::vector<std::vector<float>>;

// The largest difference of the last rows, over the deviation of the expected logits.
inline double Difference(const Logits& ours, const Tensor& expected) {
  const auto rows = static_cast<size_t>(expected.dim(0)),
             vocab = static_cast<size_t>(expected.dim(1));
  const auto* theirs = expected.As<float>();
  double largest = 0, sum = 0, squares = 0;
  for (size_t r = 0; r < rows; ++r) {
    const std::vector<float>& row = ours[ours.size() - rows + r];
    for (size_t i = 0; i < vocab; ++i) {
      const double value = theirs[r * vocab + i];
      if (!std::isfinite(row[i])) return HUGE_VAL;
      largest = std::max(largest, std::abs(row[i] - value));
      sum += value;
      squares += value * value;
    }
  }
  const auto count = static_cast<double>(rows * vocab);
  return largest / std::sqrt(squares / count - sum / count * (sum / count));
}

// The logits after each token. They go through in ranges of `step`; 0: at once. Those of a prefix,
// which see each other, are in the first range.
inline Logits FeedCase(DecoderTestDriver& driver, const Weights& weights, const FamilyCase& one,
                       size_t step) {
  const std::vector<int32_t>& tokens = one.tokens;
  const auto layout =
      LayOutPrompt(PromptRulesOf(weights.spec, weights.max_positions), one.Prompt());
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  driver.SetLayout(*layout);
  if (step == 0) return driver.Feed(tokens);
  Logits all;
  for (size_t at = 0; at < tokens.size();) {
    const size_t least = at == 0 ? static_cast<size_t>(layout->prefix_len) : 0;
    const size_t count = std::min(std::max(step, least), tokens.size() - at);
    const Logits part = driver.Feed(std::span(tokens).subspan(at, count));
    all.insert(all.end(), part.begin(), part.end());
    at += count;
  }
  return all;
}

}  // namespace tandem
