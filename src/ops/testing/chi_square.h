// A goodness-of-fit test for distributions of draws. For tests only.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::ops {

// Distance of the counts from the law in standard deviations: the chi-square statistic mapped to a
// normal one (Wilson and Hilferty). About 0 when they agree; above 4 once in 30,000 times. Cells
// with fewer than 5 expected draws are merged. A draw of probability zero gives infinity.
inline double ChiSquareZ(const std::vector<int64_t>& counts, const std::vector<double>& law) {
  double draws = 0.0;
  for (const int64_t count : counts) draws += static_cast<double>(count);
  double statistic = 0.0;
  double rare_expected = 0.0;
  double rare_count = 0.0;
  int cells = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = law[i] * draws;
    const auto count = static_cast<double>(counts[i]);
    if (law[i] <= 0.0 && counts[i] > 0) return HUGE_VAL;
    if (expected >= 5.0) {
      add(count, expected);
    } else {
      rare_expected += expected;
      rare_count += count;
    }
  }
  if (rare_expected >= 1.0) add(rare_count, rare_expected);
  if (cells < 2) return 0.0;
  const double spread = 2.0 / (9.0 * (cells - 1));
  return (std::cbrt(statistic / (cells - 1)) - (1.0 - spread)) / std::sqrt(spread);
}

}  // namespace tandem::ops
