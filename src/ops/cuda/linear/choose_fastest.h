// ChooseFastest: which of several ways of computing the same thing to use, from the times they
// took. A pure function without CUDA, so that it is tested on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace tandem::ops::cuda {

// The first way stays unless another saves at least this share of its time: noise alone must not
// make one start of a program choose differently from the next.
constexpr double kLeastGain = 0.03;

// The index of the smallest of `seconds`, or 0 if it gains too little; there is at least one.
inline size_t ChooseFastest(std::span<const double> seconds) {
  const auto fastest = std::ranges::min_element(seconds);
  if (*fastest > (1.0 - kLeastGain) * seconds.front()) return 0;
  return static_cast<size_t>(fastest - seconds.begin());
}

}  // namespace tandem::ops::cuda
