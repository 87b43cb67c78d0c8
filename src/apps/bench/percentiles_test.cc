#include "apps/bench/percentiles.h"

#include <gtest/gtest.h>

namespace tandem::apps {
namespace {

TEST(PercentilesTest, TakesTheNearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = PercentilesOf(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
}

TEST(PercentilesTest, OneValueIsEveryPercentileAndNoneIsZero) {
  EXPECT_EQ(PercentilesOf({7}).p50, 7);
  EXPECT_EQ(PercentilesOf({7}).p99, 7);
  EXPECT_EQ(PercentilesOf({}).p90, 0);
}

// The ranks of the sign test's tables.
TEST(PercentilesTest, TheMediansIntervalMatchesTheSignTest) {
  const auto first = [](int count) {
    std::vector<double> values;
    for (int i = count; i >= 1; --i) values.push_back(i);
    const std::optional<Interval> interval = MedianInterval(values);
    if (!interval) return 0;
    EXPECT_EQ(interval->low + interval->high, count + 1);
    return static_cast<int>(interval->low);
  };
  EXPECT_EQ(first(5), 0);
  EXPECT_EQ(first(6), 1);
  EXPECT_EQ(first(9), 2);
  EXPECT_EQ(first(25), 8);
  EXPECT_EQ(first(100), 40);
}

}  // namespace
}  // namespace tandem::apps
