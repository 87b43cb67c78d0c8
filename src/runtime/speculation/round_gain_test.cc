#include "runtime/speculation/round_gain.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(RoundGain, IsOneUntilThereWereEnoughRounds) {
  RoundGain gain;
  // At 64 sequences fifteen rounds are enough; one sequence emits too little in so few.
  for (int i = 0; i < 14; ++i) gain.Observe(64, 128, 1e-3, 1e-3);
  EXPECT_EQ(gain.Estimate(64), 1.0);
  gain.Observe(64, 128, 1e-3, 1e-3);
  EXPECT_DOUBLE_EQ(gain.Estimate(64), 2.0);
  for (int i = 0; i < 200; ++i) gain.Observe(1, 2, 1e-3, 1e-3);
  EXPECT_EQ(gain.Estimate(1), 1.0);
  for (int i = 0; i < 300; ++i) gain.Observe(1, 2, 1e-3, 1e-3);
  EXPECT_DOUBLE_EQ(gain.Estimate(1), 2.0);
}

TEST(RoundGain, JudgesSlowRoundsWithinASecond) {
  RoundGain gain;
  // One sequence, 24 ms a round, where plain decoding takes 18 a token.
  for (int i = 0; i < 30; ++i) gain.Observe(1, 1, 0.024, 0.018);
  EXPECT_EQ(gain.Estimate(1), 1.0);
  for (int i = 30; i < 40; ++i) gain.Observe(1, 1, 0.024, 0.018);
  EXPECT_DOUBLE_EQ(gain.Estimate(1), 0.75);
  // However slow they are, a few say nothing.
  for (int i = 0; i < 11; ++i) gain.Observe(4, 4, 2.0, 1.0);
  EXPECT_EQ(gain.Estimate(4), 1.0);
}

TEST(RoundGain, ComparesTokensPerSecondWithPlainDecodingOfAsManySequences) {
  RoundGain gain;
  // 40 tokens in 3 seconds; plainly 16 in each second and a half.
  for (int i = 0; i < 200; ++i) gain.Observe(16, 40, 3.0, 1.5);
  EXPECT_DOUBLE_EQ(gain.Estimate(16), (40 / 3.0) / (16 / 1.5));
  EXPECT_EQ(gain.Estimate(9), gain.Estimate(16)) << "of one power of two";
  EXPECT_EQ(gain.Estimate(8), 1.0) << "other numbers of sequences are not touched";
}

TEST(RoundGain, FollowsTheLastRounds) {
  RoundGain gain;
  for (int i = 0; i < 1000; ++i) gain.Observe(32, 64, 1.0, 1.0);
  for (int i = 0; i < 200; ++i) gain.Observe(32, 32, 2.0, 1.0);
  EXPECT_NEAR(gain.Estimate(32), 0.5, 0.01);
}

TEST(RoundGain, IgnoresWhatWasNotMeasured) {
  RoundGain gain;
  for (int i = 0; i < 100; ++i) gain.Observe(32, 64, 0.0, 1.0);
  EXPECT_EQ(gain.Estimate(32), 1.0);
}

}  // namespace
}  // namespace tandem
