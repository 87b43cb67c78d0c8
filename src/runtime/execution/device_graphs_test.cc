// The row counts that graphs are recorded for.
#include "runtime/execution/device_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

TEST(DeviceGraphs, BucketsAreCloseWhereRowsAreFew) {
  EXPECT_THAT(GraphSizes(1), testing::ElementsAre(1));
  EXPECT_THAT(GraphSizes(20), testing::ElementsAre(1, 2, 4, 8, 16, 20));
  EXPECT_THAT(GraphSizes(600), testing::ElementsAre(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192,
                                                    256, 384, 512, 600));
  const DeviceGraphs graphs(TestBackend(), 600);
  EXPECT_EQ(graphs.Bucket(1), 1);
  EXPECT_EQ(graphs.Bucket(17), 24);
  EXPECT_EQ(graphs.Bucket(257), 384);
  EXPECT_EQ(graphs.Bucket(600), 600);
}

}  // namespace
}  // namespace tandem
