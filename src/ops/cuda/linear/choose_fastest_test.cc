#include "ops/cuda/linear/choose_fastest.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tandem::ops::cuda {
namespace {

size_t Choose(const std::vector<double>& seconds) { return ChooseFastest(seconds); }

TEST(ChooseFastest, TakesTheSmallestTime) {
  EXPECT_EQ(Choose({40e-6, 31e-6, 22e-6, 22.5e-6}), 2u);
  EXPECT_EQ(Choose({40e-6, 22e-6, 22e-6}), 1u);
}

TEST(ChooseFastest, TheFirstStaysWhereLittleIsGained) {
  EXPECT_EQ(Choose({40e-6}), 0u);
  EXPECT_EQ(Choose({40e-6, 41e-6}), 0u);
  EXPECT_EQ(Choose({100e-6, 99e-6, 97.1e-6}), 0u);
  EXPECT_EQ(Choose({100e-6, 99e-6, 96.9e-6}), 2u);
}

TEST(ChooseFastest, TimesThatWereNotMeasuredLose) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Choose({kNever, 50e-6}), 1u);
  EXPECT_EQ(Choose({50e-6, kNever}), 0u);
  EXPECT_EQ(Choose({kNever, kNever}), 0u);
}

}  // namespace
}  // namespace tandem::ops::cuda
