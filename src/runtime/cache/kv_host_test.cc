// Blocks of the host, one rule a test; kv_cache_model_test compares random use with a reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "runtime/cache/kv_cache.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kBlockTokens = 4;

std::vector<int32_t> Tokens(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class KvHostTest : public ::testing::Test {
 protected:
  // Computes a prompt without looking for it, and leaves it in the cache.
  void Cache(const std::vector<int32_t>& tokens, int32_t draft_tokens = 1 << 20) {
    std::vector<BlockId> blocks;
    const auto count = static_cast<int32_t>(tokens.size());
    ASSERT_TRUE(cache_.Allocate((count + kBlockTokens - 1) / kBlockTokens, blocks));
    cache_.Publish(tokens, blocks, {count, std::min(count, draft_tokens)});
    cache_.Release(blocks);
  }
  std::vector<HostCopy> Copies() {
    std::vector<HostCopy> copies;
    cache_.MoveHostCopies(copies);
    return copies;
  }
  void TearDown() override {
    Copies();
    cache_.CheckIntegrity();
    EXPECT_EQ(cache_.Stats().referenced_blocks, 0);
  }

  KvCache cache_{{.num_blocks = 4, .block_tokens = kBlockTokens, .num_host_blocks = 4}};
};

TEST_F(KvHostTest, WhatIsEvictedIsFoundOnTheHostAndComesBack) {
  Cache(Tokens(0, 16), /*draft_tokens=*/6);
  Cache(Tokens(50, 8));
  // The end of the prefix went first.
  EXPECT_THAT(Copies(), ElementsAre(HostCopy{3, 0, true}, HostCopy{2, 1, true}));
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 17)), 16);
  PrefixMatch match = cache_.Match(Tokens(0, 17));
  EXPECT_EQ(match.blocks.size(), 2u);
  EXPECT_EQ(match.on_host.size(), 2u);
  EXPECT_EQ(match.computed, (ComputedLengths{16, 6}));
  EXPECT_EQ(cache_.AvailableBlocks(), 2) << "only its blocks of the device are taken";
  std::vector<BlockId> blocks = match.blocks;
  cache_.Onboard(match.on_host, blocks);
  EXPECT_EQ(blocks.size(), 4u);
  const std::vector<HostCopy> copies = Copies();
  ASSERT_EQ(copies.size(), 4u) << "each takes the block of another, which goes to the host";
  for (size_t i = 0; i < copies.size(); i += 2) {
    EXPECT_TRUE(copies[i].to_host);
    EXPECT_FALSE(copies[i + 1].to_host);
    EXPECT_EQ(copies[i].block, copies[i + 1].block);
  }
  EXPECT_EQ(copies[1].host, 1) << "front to back";
  EXPECT_EQ(copies[3].host, 0);
  cache_.Release(blocks);
  EXPECT_EQ(cache_.Match(Tokens(0, 17)).blocks, blocks) << "on the device again";
  cache_.Release(blocks);
}

TEST_F(KvHostTest, AMatchThatIsDroppedChangesNothing) {
  Cache(Tokens(0, 16));
  Cache(Tokens(50, 8));
  Copies();
  PrefixMatch match = cache_.Match(Tokens(0, 15));
  EXPECT_EQ(match.on_host.size(), 1u);
  EXPECT_GE(match.partial_on_host, 0);
  EXPECT_EQ(match.partial_tokens, 2);
  cache_.Drop(match);
  EXPECT_EQ(cache_.AvailableBlocks(), 4);
  EXPECT_THAT(Copies(), IsEmpty());
}

TEST_F(KvHostTest, PartOfABlockIsCopiedFromTheHostWhichKeepsIt) {
  Cache(Tokens(0, 4));
  Cache(Tokens(50, 16));
  Copies();
  PrefixMatch match = cache_.Match(std::vector<int32_t>{0, 1, 2, 9, 9});
  EXPECT_EQ(match.partial_source, -1);
  ASSERT_GE(match.partial_on_host, 0);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache_.Allocate(2, blocks));
  cache_.CopyFromHost(match.partial_on_host, blocks[0]);
  EXPECT_THAT(Copies(), ::testing::Contains(HostCopy{blocks[0], 0, false}));
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 5)), 4);
  cache_.Release(blocks);
}

// A prompt whose logits are wanted is computed although it is known.
TEST_F(KvHostTest, ContentComputedAgainTakesThePlaceOfTheHosts) {
  Cache(Tokens(0, 8));
  Cache(Tokens(50, 16));
  EXPECT_EQ(cache_.Stats().used_host_blocks, 2);
  Cache(Tokens(0, 8), /*draft_tokens=*/0);
  Copies();
  PrefixMatch match = cache_.Match(Tokens(0, 9));
  EXPECT_EQ(match.blocks.size(), 2u);
  EXPECT_EQ(match.computed, (ComputedLengths{8, 0})) << "as far as this copy has it";
  cache_.Drop(match);
}

TEST_F(KvHostTest, TheHostLosesWhatWasThereLongest) {
  for (int32_t i = 0; i < 4; ++i) Cache(Tokens(20 * i, 8));
  EXPECT_EQ(cache_.Stats().used_host_blocks, 4);
  Cache(Tokens(100, 8));
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9)), 0);
  EXPECT_EQ(cache_.PeekMatch(Tokens(20, 9)), 8);
  EXPECT_EQ(cache_.Stats().evictions, 6);
  EXPECT_EQ(cache_.Stats().offloads, 6);
}

}  // namespace
}  // namespace tandem
