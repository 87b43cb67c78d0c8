#include "runtime/speculation/output_length.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(OutputLength, FollowsWhatHasEnded) {
  OutputLength length;
  EXPECT_EQ(length.Expect(7), 7.0);
  EXPECT_EQ(length.Expect(1000), 64.0);
  for (int i = 0; i < 200; ++i) length.Observe(i % 2 == 0 ? 10 : 20);
  EXPECT_NEAR(length.Expect(1000), 15.0, 1.0);
  EXPECT_EQ(length.Expect(0), 1.0);
}

}  // namespace
}  // namespace tandem
