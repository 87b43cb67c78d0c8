// Percentiles of a list of times, and a confidence interval of their median. Pure.
#pragma once

#include <optional>
#include <vector>

namespace tandem::apps {

struct Percentiles {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};

// Nearest rank; zeros for an empty list.
Percentiles PercentilesOf(std::vector<double> values);

struct Interval {
  double low = 0;
  double high = 0;
};

// A 95 % confidence interval for the median of the distribution that the values were drawn from,
// whatever that distribution is. Its bounds are two order statistics, equally far from either end:
// a fair coin falls that one-sided in fewer than 5 % of such lists. Empty for fewer than six
// values.
std::optional<Interval> MedianInterval(std::vector<double> values);

}  // namespace tandem::apps
