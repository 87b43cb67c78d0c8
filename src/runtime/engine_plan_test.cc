// What PlanEngine gives a model with windows, and PlanRanks one that is split.
#include "runtime/engine_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/sharding.h"
#include "runtime/testing/test_llama.h"

namespace tandem {
namespace {

constexpr auto kTarget = static_cast<size_t>(ModelIndex::kTarget);

// One of two layers has a window.
class EnginePlanTest : public ::testing::Test {
 protected:
  EnginePlanTest() { spec_.layers[0].attention.window = 20; }

  EnginePlan Plan(int64_t blocks) {
    EngineOptions options;
    options.max_batch_size = 2;
    options.max_num_tokens = 32;
    options.draft_mode = DraftMode::kOff;
    options.kv_cache_bytes = blocks * options.block_tokens * spec_.KvBytesPerToken(spec_.dtype);
    const auto plan = PlanEngine(options, {.spec = &spec_, .max_positions = 4096}, {}, *backend_,
                                 int64_t{1} << 40);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? *plan : EnginePlan{};
  }

  ModelSpec spec_ = TinyLlamaSpec(DType::kBF16, 4096);
  const std::unique_ptr<ops::Backend> backend_ =
      ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false}).value();
};

TEST_F(EnginePlanTest, WindowedLayersHaveTheBlocksThatTheLimitsAllow) {
  const EnginePlan plan = Plan(100);
  EXPECT_EQ(plan.memory.num_window_blocks,
            plan.limits.MaxWindowBlocks(20, plan.options.block_tokens));
  EXPECT_GT(plan.memory.num_blocks, 100);
  EXPECT_TRUE(plan.row_forms[kTarget].windows);
}

TEST_F(EnginePlanTest, WhereAllLayersHaveTheSameBlocksNoPassHasAWindowTable) {
  const EnginePlan plan = Plan(4);
  EXPECT_EQ(plan.memory.num_window_blocks, 0);
  EXPECT_FALSE(plan.row_forms[kTarget].windows);
}

class RanksPlanTest : public EnginePlanTest {
 protected:
  static EngineOptions Options(int64_t kv_cache_bytes) {
    EngineOptions options;
    options.max_batch_size = 2;
    options.max_num_tokens = 32;
    options.draft_mode = DraftMode::kOff;
    options.kv_cache_bytes = kv_cache_bytes;
    return options;
  }
  // A rank for each place.
  std::vector<EnginePlan> PlanPlaces(const EngineOptions& options,
                                     const std::vector<RankPlace>& places,
                                     const std::vector<int64_t>& free_bytes) {
    std::vector<RankMemory> ranks;
    parts_.clear();
    parts_.reserve(places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      parts_.push_back(RankSpec(spec_, places[i]).value());
      ranks.push_back({.target = {.spec = &parts_.back(),
                                  .weight_bytes = 1000 * (1 + places[i].stage),
                                  .max_positions = 4096},
                       .draft = {},
                       .backend = backend_.get(),
                       .free_bytes = free_bytes[i]});
    }
    auto plans = PlanRanks(options, ranks);
    EXPECT_TRUE(plans.ok()) << plans.status().message();
    return plans.ok() ? *plans : std::vector<EnginePlan>(places.size());
  }
  std::vector<ModelSpec> parts_;
};

TEST_F(RanksPlanTest, AllStagesHaveTheSameBlocksThoughOneAloneHasAWindow) {
  const int64_t layer = spec_.KvBytesPerToken(spec_.dtype) / 2;
  const EngineOptions options = Options(100 * EngineOptions().block_tokens * layer);
  const auto plans =
      PlanPlaces(options, {{0, 1, 0, 2}, {0, 1, 1, 2}}, {int64_t{1} << 40, int64_t{1} << 40});
  const int64_t windows = plans[0].limits.MaxWindowBlocks(20, plans[0].options.block_tokens);
  for (const EnginePlan& plan : plans) {
    EXPECT_EQ(plan.memory.num_blocks, 100);  // as fit where no layer has a window
    EXPECT_EQ(plan.memory.num_window_blocks, windows);
    EXPECT_EQ(plan.memory.window_tokens, 20);
    EXPECT_EQ(plan.memory.max_seq_len, plans[0].memory.max_seq_len);
    EXPECT_TRUE(plan.row_forms[kTarget].windows);
  }
  const int64_t block = layer * options.block_tokens;
  EXPECT_EQ(plans[0].memory.kv_cache_bytes, windows * block);
  EXPECT_EQ(plans[1].memory.kv_cache_bytes, 100 * block);
}

TEST_F(RanksPlanTest, WhereTheWindowsOfOneStageFindNoRoomNoStageHasThem) {
  const int64_t layer = spec_.KvBytesPerToken(spec_.dtype) / 2;
  const EngineOptions options = Options(4 * EngineOptions().block_tokens * layer);
  for (const EnginePlan& plan :
       PlanPlaces(options, {{0, 1, 0, 2}, {0, 1, 1, 2}}, {int64_t{1} << 40, int64_t{1} << 40})) {
    EXPECT_EQ(plan.memory.num_blocks, 4);
    EXPECT_EQ(plan.memory.num_window_blocks, 0);
    EXPECT_FALSE(plan.row_forms[kTarget].windows);
    EXPECT_EQ(plan.memory.kv_cache_bytes, options.kv_cache_bytes);
  }
}

TEST_F(RanksPlanTest, TheRankWithTheLeastMemoryDecidesTheBlocksOfAll) {
  spec_.layers[0].attention.window = 0;
  const std::vector<RankPlace> stages = {{0, 1, 0, 2}, {0, 1, 1, 2}};
  const int64_t much = int64_t{1} << 40;
  const MemoryPlan alone = PlanPlaces(Options(0), stages, {much, much})[1].memory;
  int64_t work = 0;
  for (const MemoryLine& line : alone.lines) work += line.bytes;
  work -= alone.lines.front().bytes + alone.kv_cache_bytes;  // weights are loaded already
  // Half of the cache finds room on the second stage.
  const auto plans = PlanPlaces(Options(0), stages, {much, work + alone.kv_cache_bytes / 2});
  EXPECT_LT(plans[1].memory.kv_cache_bytes, alone.kv_cache_bytes / 2);
  EXPECT_EQ(plans[0].memory.num_blocks, plans[1].memory.num_blocks);
  EXPECT_EQ(plans[0].memory.kv_cache_bytes, plans[1].memory.kv_cache_bytes);
  EXPECT_THAT(plans[0].memory.lines.back().note, testing::HasSubstr("the rank with the fewest"));
  EXPECT_EQ(plans[1].memory.lines.back().note, "");
}

TEST_F(RanksPlanTest, ALineForEachStageWhereTheyDiffer) {
  const int64_t bytes = 100 * EngineOptions().block_tokens * spec_.KvBytesPerToken(spec_.dtype);
  const std::vector<int64_t> free(4, int64_t{1} << 40);
  const auto plans =
      PlanPlaces(Options(bytes), {{0, 2, 0, 2}, {1, 2, 0, 2}, {0, 2, 1, 2}, {1, 2, 1, 2}}, free);
  std::vector<std::string> weights, sampling;
  int64_t total = 0, total_of_ranks = 0;
  for (const EnginePlan& plan : plans) {
    for (const MemoryLine& line : plan.memory.lines) total_of_ranks += line.bytes;
  }
  for (const MemoryLine& line : MemoryLinesOf(plans)) {
    total += line.bytes * line.ranks;
    const std::string shown = std::to_string(line.bytes) + " " + line.note;
    if (line.what == "target weights") weights.push_back(shown);
    if (line.what == "sampling") sampling.push_back(line.note);
  }
  EXPECT_THAT(weights, testing::ElementsAre("1000 stage 1 of 2, on each of 2 ranks",
                                            "2000 stage 2 of 2, on each of 2 ranks"));
  EXPECT_EQ(total, total_of_ranks);
  EXPECT_THAT(sampling, testing::ElementsAre("on each of 4 ranks"));
}

TEST_F(RanksPlanTest, ALineForEachRankWhereOnlySomeHaveTheDraft) {
  const std::vector<EnginePlan> plans =
      PlanPlaces(Options(0), {{0, 1, 0, 1, true}, {0, 1, RankPlace::kNoStage, 1, true}},
                 {int64_t{1} << 40, int64_t{1} << 40});
  EXPECT_EQ(plans[0].memory.num_blocks, plans[1].memory.num_blocks);
  std::vector<std::string> keys;
  for (const MemoryLine& line : MemoryLinesOf(plans)) {
    if (line.what == "target keys and values") keys.push_back(line.note);
    if (line.what == "sampling") {
      EXPECT_EQ(line.note, "on each of 2 ranks");
    }
  }
  EXPECT_THAT(keys, testing::ElementsAre("rank 0"));
}

}  // namespace
}  // namespace tandem
