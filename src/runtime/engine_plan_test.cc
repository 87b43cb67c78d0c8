// What PlanEngine gives a model with windows.
#include "runtime/engine_plan.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tandem
