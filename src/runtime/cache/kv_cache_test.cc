#include "runtime/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 4;

std::vector<int32_t> Tokens(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class KvCacheTest : public ::testing::Test {
 protected:
  // Blocks for `tokens`, published with all of them computed (the draft up to `draft_tokens`).
  std::vector<BlockId> Fill(const std::vector<int32_t>& tokens, int32_t draft_tokens = 1 << 20) {
    std::vector<BlockId> blocks;
    const auto count = static_cast<int32_t>(tokens.size());
    EXPECT_TRUE(cache_.Allocate((count + kBlockTokens - 1) / kBlockTokens, blocks));
    cache_.Publish(tokens, blocks, {count, std::min(count, draft_tokens)});
    return blocks;
  }

  // As Fill, and releases the blocks.
  void Cache(const std::vector<int32_t>& tokens) { cache_.Release(Fill(tokens)); }

  void TearDown() override { cache_.CheckIntegrity(); }

  KvCache cache_{{.num_blocks = 8, .block_tokens = kBlockTokens}};
};

TEST_F(KvCacheTest, AllocatesAllOrNothing) {
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache_.Allocate(5, blocks));
  EXPECT_FALSE(cache_.Allocate(4, blocks));
  EXPECT_EQ(blocks.size(), 5u);
  EXPECT_EQ(cache_.AvailableBlocks(), 3);
  EXPECT_TRUE(cache_.Allocate(3, blocks));
  EXPECT_EQ(cache_.AvailableBlocks(), 0);
  cache_.Release(blocks);
  EXPECT_EQ(cache_.AvailableBlocks(), 8);
}

TEST_F(KvCacheTest, MatchBringsWholeBlocksAndReferencesThem) {
  const std::vector<BlockId> blocks = Fill(Tokens(0, 8));
  cache_.Release(blocks);
  EXPECT_EQ(cache_.Stats().cached_blocks, 2);
  const PrefixMatch match = cache_.Match(Tokens(0, 9));
  EXPECT_EQ(match.blocks, blocks);
  EXPECT_EQ(match.computed, (ComputedLengths{8, 8}));
  EXPECT_EQ(match.partial_source, -1);
  EXPECT_EQ(cache_.Stats().referenced_blocks, 2);
  cache_.Release(match.blocks);
}

TEST_F(KvCacheTest, MatchLeavesATokenToCompute) {
  const std::vector<BlockId> blocks = Fill(Tokens(0, 8));
  const PrefixMatch match = cache_.Match(Tokens(0, 8));
  EXPECT_EQ(match.blocks, std::vector<BlockId>{blocks[0]});
  EXPECT_EQ(match.partial_source, blocks[1]);
  EXPECT_EQ(match.partial_tokens, 3);
  EXPECT_EQ(match.computed, (ComputedLengths{7, 7}));
  EXPECT_TRUE(cache_.Match(Tokens(0, 1)).blocks.empty());
  EXPECT_TRUE(cache_.Match({}).blocks.empty());
}

TEST_F(KvCacheTest, PartOfABlockIsFoundWhereTokensDiverge) {
  Cache(Join(Tokens(0, 4), {10, 11, 12, 13}));
  const std::vector<BlockId> longer = Fill(Join(Tokens(0, 4), {10, 11, 20, 21}));
  const PrefixMatch match = cache_.Match(Join(Tokens(0, 4), {10, 11, 20, 30, 31}));
  EXPECT_EQ(match.blocks.size(), 1u);
  EXPECT_EQ(match.partial_source, longer[1]);
  EXPECT_EQ(match.partial_tokens, 3);
  EXPECT_EQ(match.computed, (ComputedLengths{7, 7}));
}

TEST_F(KvCacheTest, APartialSourceIsHeldUntilReleased) {
  Cache(Tokens(0, 4));
  const PrefixMatch match = cache_.Match(Join(Tokens(0, 2), {9}));
  ASSERT_EQ(match.partial_tokens, 2);
  std::vector<BlockId> rest;
  ASSERT_TRUE(cache_.Allocate(7, rest));
  EXPECT_FALSE(cache_.Allocate(1, rest));
  cache_.Release({&match.partial_source, 1});
  EXPECT_TRUE(cache_.Allocate(1, rest));
}

TEST_F(KvCacheTest, PeekSeesWhatMatchWouldBringAndChangesNothing) {
  Cache(Tokens(0, 8));
  const KvCacheStats before = cache_.Stats();
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 7)), 6);
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 20)), 8);
  EXPECT_EQ(cache_.PeekMatch(Tokens(1, 20)), 0);
  EXPECT_EQ(cache_.Stats().lookup_tokens, before.lookup_tokens);
  EXPECT_EQ(cache_.Stats().referenced_blocks, 0);
}

TEST_F(KvCacheTest, DifferentKeysShareNothing) {
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache_.Allocate(2, blocks));
  cache_.Publish(Tokens(0, 8), blocks, {8, 8}, {0, 0}, "tenant");
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9)), 0);
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9), "another"), 0);
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9), "tenant"), 8);
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 3), "tenant"), 2) << "nor partial blocks";
  cache_.Release(blocks);
  std::vector<BlockId> all;
  ASSERT_TRUE(cache_.Allocate(8, all));
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9), "tenant"), 0) << "evicted, and its key forgotten";
  cache_.Release(all);
}

TEST_F(KvCacheTest, OnlyWhatTheTargetComputedIsPublished) {
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache_.Allocate(2, blocks));
  cache_.Publish(Tokens(0, 8), blocks, {7, 8});
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9)), 4);
  cache_.Publish(Tokens(0, 8), blocks, {8, 8});
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9)), 8);
}

TEST_F(KvCacheTest, EachModelGetsWhatWasComputedForIt) {
  const std::vector<BlockId> blocks = Fill(Tokens(0, 12), /*draft_tokens=*/6);
  EXPECT_EQ(cache_.Match(Tokens(0, 20)).computed, (ComputedLengths{12, 6}));
  cache_.Publish(Tokens(0, 12), blocks, {12, 11});  // the draft caught up
  EXPECT_EQ(cache_.Match(Tokens(0, 20)).computed, (ComputedLengths{12, 11}));
  cache_.Publish(Tokens(0, 12), blocks, {12, 3});  // another sequence's draft lags: nothing is lost
  EXPECT_EQ(cache_.Match(Tokens(0, 20)).computed, (ComputedLengths{12, 11}));
  EXPECT_EQ(cache_.Match(Tokens(0, 12)).computed, (ComputedLengths{11, 11}));
}

TEST_F(KvCacheTest, DraftValidityEndsAtTheFirstGap) {
  const std::vector<BlockId> first = Fill(Tokens(0, 4), /*draft_tokens=*/2);
  // Another sequence computed both models, but its first block stays private.
  const std::vector<BlockId> second = Fill(Tokens(0, 8));
  const PrefixMatch match = cache_.Match(Tokens(0, 9));
  EXPECT_EQ(match.blocks, (std::vector<BlockId>{first[0], second[1]}));
  EXPECT_EQ(match.computed, (ComputedLengths{8, 2}));
}

TEST_F(KvCacheTest, ContentPublishedTwiceStaysPrivateTheSecondTime) {
  const std::vector<BlockId> first = Fill(Tokens(0, 4));
  const std::vector<BlockId> second = Fill(Tokens(0, 4));
  cache_.CheckIntegrity();
  cache_.Release(second);
  EXPECT_EQ(cache_.Stats().free_blocks, 7);
  const PrefixMatch match = cache_.Match(Tokens(0, 5));
  EXPECT_EQ(match.blocks, first);
}

TEST_F(KvCacheTest, ABlockAboveAUsedOneIsNeverEvicted) {
  const std::vector<BlockId> first = Fill(Tokens(0, 4));
  const std::vector<BlockId> second = Fill(Tokens(0, 8));  // its second block is under first[0]
  cache_.Release(first);
  cache_.CheckIntegrity();
  EXPECT_EQ(cache_.AvailableBlocks(), 5);  // first[0] is cached, but an ancestor of second[1]
  EXPECT_EQ(cache_.Stats().cached_blocks, 1);
  std::vector<BlockId> rest;
  EXPECT_FALSE(cache_.Allocate(6, rest));
  EXPECT_TRUE(cache_.Allocate(5, rest));
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 9)), 8);
  cache_.Release(rest);
  cache_.Release(second);
  EXPECT_EQ(cache_.AvailableBlocks(), 8);
}

TEST_F(KvCacheTest, EvictsTheLeastRecentlyUsedLeafFirst) {
  Cache(Tokens(0, 12));
  Cache(Tokens(100, 12));
  cache_.Release(cache_.Match(Tokens(0, 5)).blocks);  // touches the first block of the first chain
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache_.Allocate(2 + 2, blocks));
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 13)), 4);
  EXPECT_EQ(cache_.PeekMatch(Tokens(100, 13)), 12);
  ASSERT_TRUE(cache_.Allocate(1, blocks));
  EXPECT_EQ(cache_.PeekMatch(Tokens(100, 13)), 8);
  EXPECT_EQ(cache_.Stats().evictions, 3);
  ASSERT_TRUE(cache_.Allocate(3, blocks));
  EXPECT_EQ(cache_.PeekMatch(Tokens(0, 13)), 0);
  EXPECT_EQ(cache_.PeekMatch(Tokens(100, 13)), 0);
}

TEST_F(KvCacheTest, WithoutReuseNothingIsKept) {
  KvCache cache({.num_blocks = 4, .block_tokens = kBlockTokens, .enable_reuse = false});
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache.Allocate(2, blocks));
  cache.Publish(Tokens(0, 8), blocks, {8, 8});
  EXPECT_EQ(cache.PeekMatch(Tokens(0, 9)), 0);
  cache.Release(blocks);
  EXPECT_EQ(cache.Stats().free_blocks, 4);
  cache.CheckIntegrity();
}

TEST_F(KvCacheTest, ReleasingTooOftenEndsTheProgram) {
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache_.Allocate(1, blocks));
  cache_.Release(blocks);
  EXPECT_DEATH(cache_.Release(blocks), "released too often");
  blocks[0] = 8;
  EXPECT_DEATH(cache_.Release(blocks), "block 8 of 8");
}

}  // namespace
}  // namespace tandem
