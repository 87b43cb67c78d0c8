// The row counts that graphs are recorded for, and what precedes a first use where ranks share
// work.
#include "runtime/execution/device_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

TEST(DeviceGraphs, BucketsAreCloseWhereRowsAreFew) {
  EXPECT_THAT(GraphSizes(1), testing::ElementsAre(1));
  EXPECT_THAT(GraphSizes(20), testing::ElementsAre(1, 2, 4, 8, 16, 20));
  EXPECT_THAT(GraphSizes(600), testing::ElementsAre(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192,
                                                    256, 384, 512, 600));
  const DeviceGraphs graphs(TestBackend(), 600, {});
  EXPECT_EQ(graphs.Bucket(1), 1);
  EXPECT_EQ(graphs.Bucket(17), 24);
  EXPECT_EQ(graphs.Bucket(257), 384);
  EXPECT_EQ(graphs.Bucket(600), 600);
}

TEST(DeviceGraphs, RanksAreQuietBeforeEachFirstUseAndAroundEachRecording) {
  std::vector<std::string> calls;
  DeviceGraphs graphs(TestBackend(), 600, [&calls] { calls.push_back("quiet"); });
  const auto work = [&calls] { calls.push_back("work"); };
  for (int i = 0; i < 4; ++i) graphs.Run(GraphKind::kRun, 0, 8, work);
  EXPECT_THAT(calls,
              testing::ElementsAre("quiet", "work", "quiet", "quiet", "work", "work", "work"));
  calls.clear();
  graphs.Run(GraphKind::kRun, 1, 8, work);
  graphs.RunOnce(ModelIndex::kTarget, 30, work);
  graphs.RunOnce(ModelIndex::kTarget, 31, work);  // of the same bucket
  graphs.RunOnce(ModelIndex::kTarget, 500, work);
  graphs.RunOnce(ModelIndex::kDraft, 500, work);  // with kernels of its own
  EXPECT_THAT(calls, testing::ElementsAre("quiet", "work", "quiet", "quiet", "work", "work",
                                          "quiet", "quiet", "work", "quiet", "quiet", "work"));
}

}  // namespace
}  // namespace tandem
