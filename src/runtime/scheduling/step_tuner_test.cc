#include "runtime/scheduling/step_tuner.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(TunedBatchSizeTest, FollowsTheTable) {
  EXPECT_EQ(TunedBatchSize(1), 128);
  EXPECT_EQ(TunedBatchSize(143), 128);
  EXPECT_EQ(TunedBatchSize(144), 256);
  EXPECT_EQ(TunedBatchSize(335), 256);
  EXPECT_EQ(TunedBatchSize(336), 512);
  EXPECT_EQ(TunedBatchSize(671), 512);
  EXPECT_EQ(TunedBatchSize(672), 768);
  EXPECT_EQ(TunedBatchSize(831), 768);
  EXPECT_EQ(TunedBatchSize(832), 1024);
  EXPECT_EQ(TunedBatchSize(1279), 1024);
  EXPECT_EQ(TunedBatchSize(1280), 1536);
  EXPECT_EQ(TunedBatchSize(1663), 1536);
}

TEST(TunedBatchSizeTest, BeyondTheTableRoundsDownToANearMultiple) {
  EXPECT_EQ(TunedBatchSize(1664), 1664) << "128 above 1536 is not near";
  EXPECT_EQ(TunedBatchSize(2048), 2048);
  EXPECT_EQ(TunedBatchSize(2049), 2048);
  EXPECT_EQ(TunedBatchSize(2175), 2048);
  EXPECT_EQ(TunedBatchSize(2176), 2176);
}

TEST(TunedNumTokensTest, IsThePowerOfTwoThatHoldsPromptsAndDecodes) {
  EXPECT_EQ(TunedNumTokens(256, 100, 2), 16384) << "256 * 51";
  EXPECT_EQ(TunedNumTokens(4000, 100, 100), 8192);
  EXPECT_EQ(TunedNumTokens(4000, 2, 256), 4096);
}

TEST(TunedNumTokensTest, HasALeastValueByTheRatioOfTheLengths) {
  EXPECT_EQ(TunedNumTokens(1, 100, 2), 8192) << "long prompts";
  EXPECT_EQ(TunedNumTokens(1, 200, 100), 4096) << "exactly 2 is balanced";
  EXPECT_EQ(TunedNumTokens(1, 100, 100), 4096);
  EXPECT_EQ(TunedNumTokens(1, 50, 100), 2048) << "exactly 0.5 is long outputs";
  EXPECT_EQ(TunedNumTokens(1, 2, 256), 2048);
  EXPECT_EQ(TunedNumTokens(1, 10, 0), 8192) << "no output counts as one token";
}

StepTuner::Options Both() {
  return {.batch_size = true,
          .num_tokens = true,
          .most = {512, 16384},
          .num_blocks = 4096,
          .block_tokens = 32};
}

TEST(StepTunerTest, KeepsTheLimitsUntilASequenceHasEnded) {
  const StepTuner tuner(Both());
  EXPECT_EQ(tuner.bounds(), (StepBounds{512, 16384}));
}

TEST(StepTunerTest, BoundsFollowTheAverageLengths) {
  StepTuner tuner(Both());
  EXPECT_TRUE(tuner.Observe(1000, 1000)) << "63 blocks each: 65 sequences fit";
  EXPECT_EQ(tuner.bounds(), (StepBounds{128, 4096}));
  EXPECT_FALSE(tuner.Observe(1000, 1000)) << "the same averages";
  tuner.Observe(9000, 1);
  EXPECT_EQ(tuner.bounds(), (StepBounds{128, 8192})) << "averages of 3667 and 667";
}

TEST(StepTunerTest, ForgetsWhatIsOlderThanItsWindow) {
  StepTuner tuner(Both());
  tuner.Observe(100'000, 1);
  EXPECT_EQ(tuner.bounds().tokens, 16384) << "never above the limit";
  EXPECT_EQ(tuner.bounds().sequences, 128);
  for (size_t i = 0; i < StepTuner::kWindow; ++i) tuner.Observe(8, 100);
  // 4 blocks: 1024 sequences fit.
  EXPECT_EQ(tuner.bounds(), (StepBounds{512, 2048}));
}

TEST(StepTunerTest, TunesOnlyWhatItIsAskedTo) {
  StepTuner::Options options = Both();
  options.num_tokens = false;
  StepTuner batch(options);
  EXPECT_TRUE(batch.Observe(1000, 1000));
  EXPECT_EQ(batch.bounds(), (StepBounds{128, 16384}));
  options.num_tokens = true;
  options.batch_size = false;
  StepTuner tokens(options);
  EXPECT_TRUE(tokens.Observe(10, 1000));
  EXPECT_EQ(tokens.bounds(), (StepBounds{512, 2048}));
  options.num_tokens = false;
  StepTuner none(options);
  EXPECT_FALSE(none.Observe(1000, 1000));
  EXPECT_EQ(none.bounds(), options.most);
}

}  // namespace
}  // namespace tandem
