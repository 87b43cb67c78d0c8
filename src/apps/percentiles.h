// Percentiles of a list of times, and how well a few turns know their median. Pure.
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

// Between these lies the median of what the values were drawn from, with 95 % confidence, whatever
// its distribution: two order statistics, so many from either end that a fair coin falls that
// one-sided in fewer than 5 % of such lists. Nothing for fewer than six values.
std::optional<Interval> MedianInterval(std::vector<double> values);

}  // namespace tandem::apps
