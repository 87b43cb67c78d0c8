#include "runtime/host_times.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

constexpr double kStep = 1.0443;  // a sixteenth of an octave

TEST(HostTimes, PercentilesIgnoreRareSlowSteps) {
  HostTimes times;
  EXPECT_EQ(times.Percentile(0.5), 0.0);
  for (int i = 0; i < 98; ++i) times.Add(80e-6);
  for (int i = 0; i < 2; ++i) times.Add(0.012);
  EXPECT_EQ(times.count(), 100);
  EXPECT_GE(times.Percentile(0.5), 80e-6);
  EXPECT_LE(times.Percentile(0.5), 80e-6 * kStep);
  EXPECT_GE(times.Percentile(0.99), 0.012);
  EXPECT_LE(times.Percentile(0.99), 0.012 * kStep);
}

TEST(HostTimes, CountsFromAMomentOn) {
  HostTimes times;
  for (int i = 0; i < 10; ++i) times.Add(1e-3);
  const HostTimes before = times;
  for (int i = 0; i < 4; ++i) times.Add(20e-6);
  const HostTimes since = times.Since(before);
  EXPECT_EQ(since.count(), 4);
  EXPECT_LE(since.Percentile(1.0), 20e-6 * kStep);
}

TEST(HostTimes, KeepsTheShortestAndTheLongest) {
  HostTimes times;
  times.Add(0.0);
  times.Add(1e9);
  EXPECT_EQ(times.count(), 2);
  EXPECT_LE(times.Percentile(0.5), 1e-6 * kStep);
  EXPECT_GT(times.Percentile(1.0), 0.9);
}

}  // namespace
}  // namespace tandem
