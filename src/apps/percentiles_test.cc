#include "apps/percentiles.h"

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

}  // namespace
}  // namespace tandem::apps
