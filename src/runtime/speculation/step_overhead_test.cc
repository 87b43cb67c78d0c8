#include "runtime/speculation/step_overhead.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(StepOverhead, IsWhatStepsTakeBesideTheirPasses) {
  StepOverhead overhead;
  EXPECT_EQ(overhead.Estimate(), 0.0);
  for (int i = 0; i < 200; ++i) overhead.Observe(0.25, 1.0);
  EXPECT_NEAR(overhead.Estimate(), 0.25, 1e-3);
  for (int i = 0; i < 200; ++i) overhead.Observe(0.05, 2.0);
  EXPECT_NEAR(overhead.Estimate(), 0.05, 1e-3);
}

TEST(StepOverhead, AnInterruptionCountsHardlyMoreThanAnotherStep) {
  StepOverhead overhead;
  for (int i = 0; i < 200; ++i) overhead.Observe(0.1, 1.0);
  overhead.Observe(50.0, 1.0);
  EXPECT_LT(overhead.Estimate(), 0.12);
}

TEST(StepOverhead, IsNeverNegative) {
  StepOverhead overhead;
  for (int i = 0; i < 20; ++i) overhead.Observe(-0.1, 1.0);
  EXPECT_EQ(overhead.Estimate(), 0.0);
}

}  // namespace
}  // namespace tandem
