#include "apps/bench/percentiles.h"

#include <algorithm>
#include <cmath>

namespace tandem::apps {

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<size_t>(rank, 1) - 1];
  };
  return {.p50 = at(0.50), .p90 = at(0.90), .p99 = at(0.99)};
}

std::optional<Interval> MedianInterval(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t count = values.size();
  double probability = std::pow(0.5, static_cast<double>(count));  // of `from_end` heads
  double tail = 0.0;
  size_t from_end = 0;
  while (from_end < count && tail + probability <= 0.025) {
    tail += probability;
    probability *= static_cast<double>(count - from_end) / static_cast<double>(from_end + 1);
    ++from_end;
  }
  if (from_end == 0) return std::nullopt;
  return Interval{.low = values[from_end - 1], .high = values[count - from_end]};
}

}  // namespace tandem::apps
