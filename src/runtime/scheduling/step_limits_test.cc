// The bounds on window blocks at their extremes; scheduler_property_test keeps to them in random
// traffic.
#include "runtime/scheduling/step_limits.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(StepLimitsTest, AModelWithoutAWindowHasNoWindowBlocks) {
  EXPECT_EQ((StepLimits{.max_batch_size = 4, .max_num_tokens = 64}.MaxWindowBlocks(0, 8)), 0);
}

// One slot that computes one row a step.
TEST(StepLimitsTest, ATokenAloneNeedsTheBlocksThatItSeesItsOwnAndTheOneThatItCopiesFrom) {
  const StepLimits limits{.max_batch_size = 1, .max_num_tokens = 1};
  // In blocks of one token nothing is copied in part, but the bound does not say so.
  EXPECT_EQ(limits.MaxWindowBlocks(1, 1), 2);
  EXPECT_EQ(limits.MaxWindowBlocks(7, 1), 6 + 2);
  // Token 8 sees token 7 in the block before; it may copy from another.
  EXPECT_GE(limits.MaxWindowBlocks(2, 8), 3);
}

TEST(StepLimitsTest, WhatTheWindowAndTheRowsOfAllStepsFillFits) {
  for (const int32_t block_tokens : {8, 32, 128}) {
    for (const int32_t launched : {1, 2}) {
      const StepLimits limits{
          .max_batch_size = 1, .max_num_tokens = 1000, .max_launched = launched};
      // Of one sequence whose first token seen is the last of a block, and whose first row is too.
      const int64_t tokens = 500 + launched * 1000;
      const int64_t filled = (tokens - 2) / block_tokens + 2;
      EXPECT_GE(limits.MaxWindowBlocks(501, block_tokens), filled);
      EXPECT_LE(limits.MaxWindowBlocks(501, block_tokens), filled + 3);
    }
  }
}

TEST(StepLimitsTest, AStepOfOneRowForEachSlotMapsABlockForEach) {
  const StepLimits limits{.max_batch_size = 4096, .max_num_tokens = 4096};
  EXPECT_GE(limits.MaxMappings(128), 2 * 4096) << "new ones, and those that the tree takes over";
  EXPECT_GE((StepLimits{.max_batch_size = 1, .max_num_tokens = 1}.MaxMappings(128)), 2);
}

TEST(StepLimitsTest, TheLargestOptionsDoNotOverflow) {
  const StepLimits limits{.max_batch_size = 4096, .max_num_tokens = 1 << 20, .max_launched = 2};
  EXPECT_GT(limits.MaxMappings(8), 0);
  EXPECT_GT(limits.MaxWindowBlocks(int64_t{1} << 28, 8), int64_t{4096} << 25);
}

}  // namespace
}  // namespace tandem
