#include "apps/percentiles.h"

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

}  // namespace tandem::apps
