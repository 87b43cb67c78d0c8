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

TEST(ReplicasTest, DevicesAreSharedOutInTheirOrder) {
  RankOptions ranks;
  ranks.devices = {"cuda:0", "cuda:1", "cuda:3", "cuda:4"};
  ranks.draft_devices = {"cuda:2", "cuda:5"};
  ReplicaOptions replicas{.count = 2};
  ASSERT_TRUE(ShareDevices(ranks, replicas).ok());
  EXPECT_EQ(ranks.devices, (std::vector<std::string>{"cuda:0", "cuda:1"}));
  EXPECT_EQ(ranks.draft_devices, (std::vector<std::string>{"cuda:2"}));
  EXPECT_EQ(replicas.draft_devices, (std::vector<std::string>{"cuda:2", "cuda:5"}));
}

TEST(ReplicasTest, DraftsOfSeveralReplicasNeedADeviceEach) {
  ReplicaOptions replicas{.count = 2};
  RankOptions ranks;
  ranks.devices = {"cuda:0", "cuda:1"};
  ranks.draft_devices = {"cuda:2"};
  EXPECT_NE(ShareDevices(ranks, replicas).message().find("--draft_device 1;"), std::string::npos);
  ranks.devices = {"cuda:0"};
  ranks.draft_devices = {"cuda:2", "cuda:3"};
  EXPECT_FALSE(ShareDevices(ranks, replicas).ok());
  ranks.devices = ranks.draft_devices = {"cpu"};  // each has threads of its own
  EXPECT_TRUE(ShareDevices(ranks, replicas).ok());
}

TEST(ReplicasTest, DraftsOfAllReplicasAreWhereThatOfTheFirstIs) {
  const auto check = [](std::vector<std::string> devices, std::vector<std::string> drafts) {
    RankOptions ranks;
    ranks.target = static_cast<int32_t>(devices.size()) / 2;
    ranks.devices = std::move(devices);
    ranks.draft_devices = std::move(drafts);
    ReplicaOptions replicas{.count = 2};
    TANDEM_RETURN_IF_ERROR(ShareDevices(ranks, replicas));
    BackendOptions gpus;
    gpus.device = "cuda:0";
    gpus.cuda.batch_invariant = true;
    TANDEM_RETURN_IF_ERROR(PlaceDraft(gpus, ranks));
    return CheckDraftPlaces(gpus, replicas, ranks);
  };
  EXPECT_TRUE(check({"cuda:0", "cuda:1"}, {"cuda:2", "cuda:3"}).ok());
  EXPECT_TRUE(check({"cuda:0", "cuda:1", "cuda:2", "cuda:3"}, {"cuda:1", "cuda:3"}).ok());
  // The first is beside its target, the other one has a GPU of its own.
  EXPECT_FALSE(check({"cuda:0", "cuda:1"}, {"cuda:0", "cuda:2"}).ok());
  EXPECT_FALSE(check({"cuda:0", "cuda:1", "cuda:2", "cuda:3"}, {"cuda:0", "cuda:3"}).ok());
  // That of the first would be on the second's GPU.
  const Status taken = check({"cuda:0", "cuda:1"}, {"cuda:1", "cuda:2"});
  EXPECT_NE(taken.message().find("replica 0 is on GPU 1, which is taken"), std::string::npos);
}

TEST(ReplicasTest, EachHasARankForItsDraft) {
  SharedDevices devices;
  RankOptions ranks;
  ranks.target = 1;
  ranks.devices = ranks.draft_devices = {"cpu"};
  ASSERT_TRUE(PlaceDraft(OnCpu(4), ranks).ok());
  const auto made = MakeReplicaBackends(OnCpu(4), {.count = 2}, ranks, devices);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)[0].size(), 2u);
  EXPECT_EQ((*made)[1].size(), 2u);
}

}  // namespace
}  // namespace tandem::apps
