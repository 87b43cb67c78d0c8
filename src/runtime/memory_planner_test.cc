#include "runtime/memory_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "model/kv_pool.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class MemoryPlannerTest : public testing::Test {
 protected:
  MemoryPlannerTest() {
    spec_.dtype = DType::kBF16;
    LayerSpec layer;
    layer.attention.num_kv_heads = 4;
    layer.attention.head_dim = 8;
    spec_.layers.assign(2, layer);  // 256 bytes a token
    target_ = {
        .spec = &spec_, .weight_bytes = 5000, .workspace_bytes = 3000, .max_positions = 1000};
    draft_spec_ = spec_;
    draft_spec_.layers.resize(1);
    draft_ = {
        .spec = &draft_spec_, .weight_bytes = 700, .workspace_bytes = 400, .max_positions = 1000};
    options_.max_batch_size = 4;
    options_.block_tokens = 10;
  }
  Result<MemoryPlan> Plan(int64_t free_bytes) {
    return PlanMemory(options_, target_, draft_, 600, free_bytes);
  }
  std::string Refusal(int64_t free_bytes) {
    const auto plan = Plan(free_bytes);
    return plan.ok() ? "planned" : plan.status().message();
  }

  ModelSpec spec_, draft_spec_;
  ModelMemory target_, draft_;
  EngineOptions options_;
};

TEST_F(MemoryPlannerTest, ByDefaultTakesWhatTheLongestBatchNeedsAndNoMore) {
  const MemoryPlan plan = Plan(int64_t{1} << 40).value();
  EXPECT_EQ(plan.num_blocks, 4 * 100);
  EXPECT_EQ(plan.max_seq_len, 1000);
  EXPECT_EQ(plan.kv_cache_bytes, 4000 * (256 + 128));
}

TEST_F(MemoryPlannerTest, ByDefaultTakesHalfOfWhatIsFree) {
  const MemoryPlan plan = Plan(1'000'000 + 4000).value();
  EXPECT_EQ(plan.num_blocks, 500'000 / 3840);
  EXPECT_EQ(plan.max_seq_len, 1000);
  const MemoryPlan little = Plan(100'000 + 4000).value();
  EXPECT_EQ(little.max_seq_len, little.num_blocks * 10) << "the cache bounds the longest sequence";
}

TEST_F(MemoryPlannerTest, AnAskedNumberOfTokensBoundsTheCache) {
  options_.kv_cache_tokens = 255;
  EXPECT_EQ(Plan(int64_t{1} << 40).value().num_blocks, 26);
  EXPECT_EQ(Plan(int64_t{1} << 40).value().max_seq_len, 260);
  EXPECT_LT(Plan(50'000 + 4000).value().num_blocks, 26) << "the memory allows fewer";
  options_.max_seq_len = 1000;
  EXPECT_THAT(Refusal(int64_t{1} << 40), HasSubstr("raise max_tokens_in_paged_kv_cache"));
}

TEST_F(MemoryPlannerTest, OneSequenceNoLongerThanABlockNeedsOneBlock) {
  options_.max_batch_size = 1;
  target_.max_positions = 10;
  const auto plan = Plan(int64_t{1} << 40);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->num_blocks, 1);
  EXPECT_EQ(plan->max_seq_len, 10);
}

TEST_F(MemoryPlannerTest, ABlockHasTheBytesOfAllGroupsOfThePool) {
  spec_.layers.resize(3, spec_.layers.front());
  spec_.layers[1].attention.num_kv_heads = 2;
  spec_.layers[1].attention.head_dim = 12;
  const MemoryPlan plan = Plan(int64_t{1} << 40).value();
  EXPECT_EQ(plan.kv_cache_bytes, 4000 * (256 + 96 + 128));
  const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
  int64_t bytes = 0;
  for (const ModelSpec* spec : {&spec_, &draft_spec_}) {
    const auto owned =
        MakeKvPool(*spec, spec->dtype, plan.num_blocks, options_.block_tokens, *backend);
    ASSERT_TRUE(owned.ok()) << owned.status().message();
    EXPECT_EQ(owned->pool.groups.size(), spec == &spec_ ? 2u : 1u);
    for (const ops::KvGroup& group : owned->pool.groups) bytes += group.data.NumBytes();
  }
  EXPECT_EQ(bytes, plan.kv_cache_bytes);
}

// The host's blocks are as large as the device's of both models, and take nothing of its memory.
TEST_F(MemoryPlannerTest, BlocksOfTheHostAreAsManyAsTheirMemoryHolds) {
  const MemoryPlan without = Plan(1'000'000).value();
  EXPECT_EQ(without.num_host_blocks, 0);
  options_.kv_host_cache_bytes = 10 * 3840 + 3839;
  const MemoryPlan plan = Plan(1'000'000).value();
  EXPECT_EQ(plan.block_bytes, 3840);
  EXPECT_EQ(plan.num_host_blocks, 10);
  EXPECT_EQ(plan.num_blocks, without.num_blocks);
  ASSERT_EQ(plan.lines.size(), without.lines.size() + 1);
  EXPECT_EQ(plan.lines.back().bytes, 10 * 3840);
  EXPECT_EQ(plan.lines.back().option, "kv_host_cache_bytes");
  EXPECT_TRUE(plan.lines.back().pinned);
  options_.kv_host_cache_bytes = 3839;
  EXPECT_THAT(Refusal(1'000'000), HasSubstr("one block of 10 tokens needs"));
}

// Half of the layers have a window.
TEST_F(MemoryPlannerTest, LayersWithAWindowHaveTheBlocksThatSlotsAndStepsNeed) {
  spec_.layers.resize(4, spec_.layers.front());
  for (const size_t layer : {0, 2}) spec_.layers[layer].attention.window = 20;
  const ModelMemory draft;
  const auto plan = [&](int64_t bytes, int64_t window_blocks) {
    options_.kv_cache_bytes = bytes;
    return PlanMemory(options_, target_, draft, 0, int64_t{1} << 40, window_blocks).value();
  };
  const int64_t block = spec_.KvBytesPerToken(spec_.dtype) * options_.block_tokens;
  const MemoryPlan whole = plan(40 * block, 0), split = plan(40 * block, 12);
  EXPECT_EQ(whole.num_blocks, 40);
  EXPECT_EQ(whole.num_window_blocks, 0);
  EXPECT_EQ(split.num_window_blocks, 12);
  EXPECT_EQ(split.window_tokens, 20);
  EXPECT_EQ(split.num_blocks, 80 - 12);
  EXPECT_EQ(split.kv_cache_bytes, whole.kv_cache_bytes);
  // Where there are no more blocks than that, all layers have them.
  EXPECT_EQ(plan(12 * block, 12).num_blocks, 12);
  EXPECT_EQ(plan(12 * block, 12).num_window_blocks, 0);
  EXPECT_EQ(plan(13 * block, 12).num_blocks, 14);
  const auto backend = ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
  const auto owned = MakeKvPool(spec_, spec_.dtype, split.num_blocks, options_.block_tokens,
                                *backend, {}, split.num_window_blocks);
  int64_t bytes = 0;
  for (const ops::KvGroup& group : owned->pool.groups) bytes += group.data.NumBytes();
  EXPECT_EQ(bytes, split.kv_cache_bytes);
}

TEST_F(MemoryPlannerTest, EveryLineHasItsBytesAndItsOption) {
  options_.kv_cache_bytes = 38400;
  options_.max_seq_len = 100;
  const MemoryPlan plan = Plan(1 << 20).value();
  EXPECT_EQ(plan.num_blocks, 10);
  ASSERT_EQ(plan.lines.size(), 7u);
  int64_t sum = 0;
  for (const MemoryLine& line : plan.lines) sum += line.bytes;
  EXPECT_EQ(sum, 5000 + 700 + 3000 + 400 + 600 + 38400);
  EXPECT_EQ(plan.lines[5].what, "target keys and values");
  EXPECT_EQ(plan.lines[5].bytes, 25600);
  EXPECT_EQ(plan.lines[5].option, "kv_cache_bytes");
}

TEST_F(MemoryPlannerTest, KeysAndValuesOf8BitsTakeHalfTheBytesAndInt8NeedsScales) {
  options_.kv_cache_bytes = 38400 * 4;
  const int32_t in_16_bits = Plan(1 << 20).value().num_blocks;
  options_.kv_cache_dtype = DType::kF8E4M3;
  EXPECT_EQ(Plan(1 << 20).value().num_blocks, 2 * in_16_bits);
  options_.kv_cache_dtype = DType::kI8;
  EXPECT_EQ(KvTypeOf(options_, spec_), spec_.dtype);
  spec_.cache_scales = DType::kF8E4M3;
  EXPECT_EQ(KvTypeOf(options_, spec_), spec_.dtype) << "fp8's are not int8's";
  spec_.cache_scales = DType::kI8;
  EXPECT_EQ(KvTypeOf(options_, spec_), DType::kI8);
  EXPECT_EQ(Plan(1 << 20).value().lines[6].note, "in " + std::string(DTypeName(draft_spec_.dtype)) +
                                                     ": the draft has no scales for int8");
  draft_spec_.cache_scales = DType::kI8;
  const MemoryPlan plan = Plan(1 << 20).value();
  EXPECT_EQ(plan.num_blocks, 2 * in_16_bits);
  EXPECT_EQ(plan.lines[6].note, "");
  options_.kv_cache_dtype = DType::kF8E4M3;
  EXPECT_EQ(KvTypeOf(options_, spec_), DType::kF8E4M3) << "fp8 takes int8's scales too";
}

// Attention numbers the rows of a pool with 32 bits: fp8 and few heads reach that on a large GPU.
TEST_F(MemoryPlannerTest, APoolHasNoMoreBlocksThanCanBeNumberedAndTheLineSaysSo) {
  options_.kv_cache_dtype = DType::kF8E4M3;
  options_.kv_cache_bytes = int64_t{1} << 37;
  const int64_t target_rows =
      int64_t{2} * 2 * 4 * 10;  // of a block: layers, keys and values, heads
  const int64_t limit = ((int64_t{1} << 32) - 2) / target_rows;
  const MemoryPlan plan = Plan(int64_t{1} << 38).value();
  EXPECT_EQ(plan.num_blocks, limit);
  EXPECT_LT(plan.num_blocks * target_rows, int64_t{std::numeric_limits<uint32_t>::max()});
  EXPECT_GE((plan.num_blocks + 1) * target_rows, int64_t{std::numeric_limits<uint32_t>::max()});
  EXPECT_EQ(plan.kv_cache_bytes, limit * (1280 + 640));
  EXPECT_THAT(plan.lines[5].note, HasSubstr(std::to_string(limit) + " blocks"));
  EXPECT_THAT(plan.lines[6].note, HasSubstr(std::to_string(limit) + " blocks"));
  options_.kv_cache_bytes = limit * (1280 + 640);
  EXPECT_EQ(Plan(int64_t{1} << 38).value().num_blocks, limit);
  EXPECT_EQ(Plan(int64_t{1} << 38).value().lines[5].note, "");
}

TEST_F(MemoryPlannerTest, TheDraftsPoolBoundsTheBlocksToo) {
  draft_spec_.layers.assign(8, draft_spec_.layers.front());
  const int64_t limit = ((int64_t{1} << 32) - 2) / (int64_t{2} * 8 * 4 * 10);
  options_.kv_cache_bytes = int64_t{1} << 38;
  EXPECT_EQ(Plan(int64_t{1} << 39).value().num_blocks, limit);
}

TEST_F(MemoryPlannerTest, RefusesASequenceThatNoPoolHolds) {
  spec_.layers.assign(1000, spec_.layers.front());
  for (LayerSpec& layer : spec_.layers) layer.attention.num_kv_heads = 1024;
  target_.max_positions = int64_t{1} << 20;
  options_.max_seq_len = 1 << 20;
  EXPECT_THAT(Refusal(int64_t{1} << 60), HasSubstr("holds at most 2090 tokens"));
  EXPECT_THAT(Refusal(int64_t{1} << 60), HasSubstr("lower max_seq_len"));
}

TEST_F(MemoryPlannerTest, RefusesWithNeededAndFreeBytesAndTheOption) {
  options_.max_seq_len = 2000;
  EXPECT_THAT(Refusal(1 << 20), HasSubstr("max_seq_len is 2000; the model has 1000 positions"));
  options_.max_seq_len = 1000;
  options_.kv_cache_bytes = 100'000;
  EXPECT_THAT(Refusal(1 << 20), HasSubstr("one sequence of 1000 tokens needs"));
  options_.max_seq_len = 100;
  options_.kv_cache_bytes = 1 << 20;
  EXPECT_THAT(Refusal(1 << 20), HasSubstr("lower kv_cache_bytes"));
}

}  // namespace
}  // namespace tandem
