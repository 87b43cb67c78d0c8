#include "runtime/cache/kv_events.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "runtime/cache/kv_cache.h"

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 4;

std::vector<int32_t> Tokens(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class KvEventsTest : public ::testing::Test {
 protected:
  void Make(int32_t max_events, int32_t blocks, int32_t host_blocks, uint64_t secret = 1) {
    events_ = std::make_unique<KvEvents>(max_events, blocks, host_blocks, kBlockTokens, secret);
    cache_ = std::make_unique<KvCache>(KvCacheOptions{.num_blocks = blocks,
                                                      .block_tokens = kBlockTokens,
                                                      .num_host_blocks = host_blocks,
                                                      .events = events_.get()});
  }
  // Computes a prompt, from its match on, and leaves it in the cache.
  void Run(const std::vector<int32_t>& tokens, std::string_view key = {}) {
    PrefixMatch match = cache_->Match(tokens, key);
    cache_->DropPartial(match);
    std::vector<BlockId> blocks = match.blocks;
    cache_->Onboard(match.on_host, blocks);
    const auto count = static_cast<int32_t>(tokens.size());
    const int32_t all = (count + kBlockTokens - 1) / kBlockTokens;
    ASSERT_TRUE(cache_->Allocate(all - static_cast<int32_t>(blocks.size()), blocks));
    cache_->Publish(tokens, blocks, {count, count}, match.computed, key);
    cache_->Release(blocks);
    std::vector<HostCopy> copies;
    cache_->MoveHostCopies(copies);
  }
  std::vector<KvEvent> Take() { return events_->Take(1000).events; }

  std::unique_ptr<KvEvents> events_;
  std::unique_ptr<KvCache> cache_;
};

TEST_F(KvEventsTest, ABlockIsStoredMovedAndRemoved) {
  Make(100, /*blocks=*/3, /*host_blocks=*/1);
  Run(Tokens(0, 8));
  Run(Tokens(50, 12));
  Run(Tokens(80, 12));
  const std::vector<KvEvent> events = Take();
  ASSERT_GE(events.size(), 8u);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].id, i);
  EXPECT_EQ(events[0].kind, KvEvent::Kind::kCreated);
  EXPECT_EQ(events[0].device_blocks, 3);
  EXPECT_EQ(events[0].host_blocks, 1);
  EXPECT_EQ(events[1].kind, KvEvent::Kind::kStored);
  EXPECT_EQ(events[1].tokens, Tokens(0, 4));
  EXPECT_EQ(events[1].parent, 0u);
  EXPECT_EQ(events[2].tokens, Tokens(4, 4));
  EXPECT_EQ(events[2].parent, events[1].hash);
  EXPECT_NE(events[2].hash, events[1].hash);
  // The leaf goes to the host, and is lost there when the block before it follows.
  EXPECT_EQ(events[3].kind, KvEvent::Kind::kUpdated);
  EXPECT_TRUE(events[3].to_host);
  EXPECT_EQ(events[3].hash, events[2].hash);
  EXPECT_EQ(events[4].kind, KvEvent::Kind::kRemoved);
  EXPECT_EQ(events[4].hash, events[2].hash);
  EXPECT_EQ(events[5].kind, KvEvent::Kind::kUpdated);
  EXPECT_EQ(events[5].hash, events[1].hash);
}

// Who follows the events knows what the cache holds.
TEST_F(KvEventsTest, ARouterThatFollowsThemKnowsTheTree) {
  Make(10'000, /*blocks=*/12, /*host_blocks=*/9);
  std::set<uint64_t> device, host;
  uint32_t random = 1;
  for (int i = 0; i < 400; ++i) {
    random = random * 1664525u + 1013904223u;
    Run(Tokens(static_cast<int32_t>(random >> 29) * 7, 4 + static_cast<int32_t>(random >> 8) % 24));
    for (const KvEvent& event : Take()) {
      switch (event.kind) {
        case KvEvent::Kind::kCreated:
          break;
        case KvEvent::Kind::kStored:
          EXPECT_TRUE(event.parent == 0 || device.contains(event.parent));
          EXPECT_TRUE(device.insert(event.hash).second);
          break;
        case KvEvent::Kind::kRemoved:
          EXPECT_EQ(device.erase(event.hash) + host.erase(event.hash), 1u);
          break;
        case KvEvent::Kind::kUpdated:
          EXPECT_EQ((event.to_host ? device : host).erase(event.hash), 1u);
          EXPECT_TRUE((event.to_host ? host : device).insert(event.hash).second);
          break;
      }
    }
    const KvCacheStats stats = cache_->Stats();
    ASSERT_EQ(static_cast<int32_t>(device.size()), stats.cached_blocks);
    ASSERT_EQ(static_cast<int32_t>(host.size()), stats.used_host_blocks);
  }
  EXPECT_GT(cache_->Stats().onboards, 10);
}

TEST_F(KvEventsTest, AFullRingLosesTheOldestAndSaysSo) {
  Make(3, /*blocks=*/8, /*host_blocks=*/0);
  Run(Tokens(0, 24));
  KvEventBatch batch = events_->Take(2);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.lost, 4u);
  EXPECT_EQ(batch.events[0].id, 4u);
  EXPECT_EQ(batch.events[1].id, 5u);
  batch = events_->Take(2);
  ASSERT_EQ(batch.events.size(), 1u);
  EXPECT_EQ(batch.events[0].id, 6u);
  EXPECT_EQ(batch.events[0].tokens, Tokens(20, 4));
  EXPECT_TRUE(events_->Take(2).events.empty());
}

// The hash of a prefix is the same everywhere; under a key it says nothing to others.
TEST_F(KvEventsTest, KeysAreNeverShown) {
  std::set<uint64_t> plain, keyed, keys;
  for (const uint64_t secret : {1, 2}) {
    Make(100, 8, 0, secret);
    Run(Tokens(0, 8));
    Run(Tokens(0, 8), "tenant");
    for (const KvEvent& event : Take()) {
      if (event.kind != KvEvent::Kind::kStored) continue;
      (event.key == 0 ? plain : keyed).insert(event.hash);
      EXPECT_EQ(event.tokens.empty(), event.key != 0);
      if (event.key != 0) keys.insert(event.key);
      EXPECT_LT(event.hash, uint64_t{1} << 53);
    }
  }
  EXPECT_EQ(plain.size(), 2u);
  EXPECT_EQ(keyed.size(), 4u);
  EXPECT_EQ(keys.size(), 2u);
}

}  // namespace
}  // namespace tandem
