#include "apps/models/rank_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::apps {
namespace {

using testing::ElementsAre;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(RankUse, LinesOfAPlanAreCacheOrWorkspace) {
  MemoryPlan plan;
  const auto add = [&](const char* what, int64_t mib) {
    MemoryLine& line = plan.lines.emplace_back();
    line.what = what;
    line.bytes = mib * kMiB;
  };
  add("target weights", 50);
  plan.lines.back().weights = true;
  add("draft weights", 5);
  plan.lines.back().weights = true;
  add("target workspace", 7);
  add("sampling", 1);
  add("target keys and values", 20);
  add("draft keys and values", 4);
  add("evicted keys and values (host)", 90);
  plan.lines.back().pinned = true;
  const RankUse memory = MemoryOfRank(plan, "cuda:1", 55 * kMiB, 100 * kMiB);
  EXPECT_EQ(memory.device, "cuda:1");
  EXPECT_EQ(memory.weights, 55 * kMiB);
  EXPECT_EQ(memory.cache, 24 * kMiB);
  EXPECT_EQ(memory.workspace, 8 * kMiB);
  EXPECT_EQ(memory.free, 100 * kMiB);
}

TEST(RankUse, EachRankIsARow) {
  const std::vector<RankUse> ranks = {{.device = "cuda:1",
                                       .weights = 55 * kMiB,
                                       .cache = 24 * kMiB,
                                       .workspace = 8 * kMiB,
                                       .free = 100 * kMiB},
                                      {.device = "cuda:2",
                                       .weights = 53 * kMiB,
                                       .cache = 24 * kMiB,
                                       .workspace = 8 * kMiB,
                                       .free = 90 * kMiB}};
  EXPECT_THAT(ShowRanks(ranks),
              ElementsAre("  rank  device     weights       cache   workspace        free",
                          "  0     cuda:1    55.0 MiB    24.0 MiB     8.0 MiB     100 MiB",
                          "  1     cuda:2    53.0 MiB    24.0 MiB     8.0 MiB    90.0 MiB"));
}

}  // namespace
}  // namespace tandem::apps
