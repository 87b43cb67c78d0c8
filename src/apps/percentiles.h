// Percentiles of a list of times. Pure.
#pragma once

#include <vector>

namespace tandem::apps {

struct Percentiles {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};

// Nearest rank; zeros for an empty list.
Percentiles PercentilesOf(std::vector<double> values);

}  // namespace tandem::apps
