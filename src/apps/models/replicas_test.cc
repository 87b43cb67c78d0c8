#include "apps/models/replicas.h"

#include <gtest/gtest.h>

namespace tandem::apps {
namespace {

BackendOptions OnCpu(int threads) {
  BackendOptions options;
  options.device = "cpu";
  options.cpu.num_threads = threads;
  return options;
}

TEST(ReplicasTest, EachAndEachOfItsRanksHasItsOwnThreadsAndCores) {
  const RankOptions ranks{.target = 2};
  const auto share = [&](int32_t replica, int32_t rank) {
    return BackendOfRank(BackendOfReplica(OnCpu(8), {.count = 2}, replica), ranks, rank).cpu;
  };
  for (int32_t replica = 0; replica < 2; ++replica) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(share(replica, rank).num_threads, 2);
      EXPECT_EQ(share(replica, rank).first_core, 4 * replica + 2 * rank);
    }
  }
  EXPECT_EQ(BackendOfReplica(OnCpu(8), {.count = 1}, 0).cpu.num_threads, 8);
  EXPECT_EQ(BackendOfReplica(OnCpu(2), {.count = 3}, 2).cpu.num_threads, 1);
}

TEST(ReplicasTest, HaveBackendsOfTheirOwnWhichTheNextSessionShares) {
  SharedDevices devices;
  const auto first = MakeReplicaBackends(OnCpu(2), {.count = 2}, {}, devices);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_EQ(first->size(), 2u);
  ASSERT_EQ((*first)[0].size(), 1u);
  EXPECT_NE((*first)[0][0], (*first)[1][0]);
  EXPECT_EQ((*first)[1][0]->Describe(), (*first)[0][0]->Describe());
  const auto second = MakeReplicaBackends(OnCpu(2), {.count = 2}, {}, devices);
  EXPECT_EQ(*second, *first);
}

}  // namespace
}  // namespace tandem::apps
