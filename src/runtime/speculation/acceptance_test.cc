#include "runtime/speculation/acceptance.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Acceptance, StartsAtThePriorAndLearns) {
  Acceptance acceptance;
  EXPECT_DOUBLE_EQ(acceptance.Estimate(0.7), 0.7);
  for (int i = 0; i < 200; ++i) acceptance.Observe(4, 4);
  EXPECT_GT(acceptance.Estimate(0.7), 0.99);
  for (int i = 0; i < 200; ++i) acceptance.Observe(4, 0);
  EXPECT_LT(acceptance.Estimate(0.7), 0.01);
  for (int i = 0; i < 200; ++i) acceptance.Observe(4, i % 2 == 0 ? 4 : 0);
  EXPECT_NEAR(acceptance.Estimate(0.7), 0.8, 0.03);  // four of five tested drafts were accepted
}

}  // namespace
}  // namespace tandem
