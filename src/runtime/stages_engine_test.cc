// Engines whose stages need different memory: layers with a window on some of them, blocks of other
// sizes, evicted blocks in host memory; and steps that pass through the stages in slices.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/testing/ranked_models.h"

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 8;

class StagesEngineTest : public ::testing::TestWithParam<std::tuple<std::string, RankLayout>> {
 protected:
  void SetUp() override {
    if (!HasRanks(split().count())) GTEST_SKIP() << "fewer GPUs here";
  }
  static const std::string& name() { return std::get<0>(GetParam()); }
  static const RankLayout& split() { return std::get<1>(GetParam()); }

  static EngineOptions Options(bool drafts) {
    EngineOptions options;
    options.executor = TestExecutor();
    options.max_batch_size = 3;
    options.max_num_tokens = 16;
    options.max_seq_len = 320;
    options.block_tokens = kBlockTokens;
    options.draft_mode = drafts ? DraftMode::kFixed : DraftMode::kOff;
    options.fixed_draft_len = 3;
    options.kv_cache_tokens = kBlockTokens * 45;
    return options;
  }
  std::unique_ptr<Engine> Make(const EngineOptions& options) {
    models_.ranks.clear();  // before their backends
    models_ = LoadRanks(name(), WithSplitDraft(split()), options.max_seq_len);
    if (options.draft_mode == DraftMode::kOff) {
      for (EngineRank& rank : models_.ranks) rank.draft = {};
    }
    auto engine = Engine::Create(options, models_.ranks, clock_);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (int32_t i = 0; i < 6; ++i) {
      // Two share a long beginning.
      Request request = SimpleRequest(CountingPrompt(20 + 30 * i, i / 2), 60);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      request.seed = static_cast<uint64_t>(i);
      requests.push_back(std::move(request));
    }
    return requests;
  }
  // Each request alone, on one stage where the sums of several are the same.
  std::vector<std::vector<int32_t>> Expected() {
    EngineOptions options = Options(false);
    options.enable_prefix_reuse = false;
    options.kv_cache_tokens = 0;
    options.kv_cache_bytes = 8 << 20;
    // In 16 bits the sums of several ranks are rounded otherwise than that of one.
    const auto alone = TestOnCuda() ? Make(options) : MakeFamilyEngine(name(), options, clock_);
    std::vector<std::vector<int32_t>> expected;
    for (const Request& request : Requests()) {
      expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
    }
    return expected;
  }
  // Twice, so that prefixes are found.
  void ExpectTokens(Engine& engine, const std::vector<std::vector<int32_t>>& expected) {
    int64_t cached = 0;
    for (int round = 0; round < 2; ++round) {
      const auto got = RunRequests(engine, Requests());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i][0].tokens, expected[i]) << "request " << i << ", round " << round;
        cached += got[i][0].usage.cached_tokens;
      }
    }
    EXPECT_GT(cached, 0);
    engine.CheckIntegrity();
  }

  SteadyClock clock_;
  RankedModels models_;
};

class StageWindowsTest : public StagesEngineTest {};

// gemma2 has windows in every other layer, gemma3 in all but the last: a stage may have none, or
// nothing else.
TEST_P(StageWindowsTest, WindowsOfSomeStagesChangeNoToken) {
  const auto expected = Expected();
  for (const bool drafts : {false, true}) {
    SCOPED_TRACE(drafts ? "drafts" : "plain");
    const auto engine = Make(Options(drafts));
    EXPECT_GT(engine->Stats().kv.total_window_blocks, 0);
    EXPECT_LT(engine->Stats().kv.total_window_blocks, engine->Stats().kv.total_blocks);
    ExpectTokens(*engine, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, StageWindowsTest,
                         ::testing::Combine(::testing::Values("gemma2", "gemma3_text"),
                                            ::testing::Values(RankLayout{1, 2}, RankLayout{1, 3})),
                         [](const auto& info) {
                           return std::get<0>(info.param) + NameOf(std::get<1>(info.param));
                         });

class StageHostTierTest : public StagesEngineTest {};

TEST_P(StageHostTierTest, EvictedBlocksComeBackOnEveryStage) {
  const auto expected = Expected();
  for (const bool drafts : {false, true}) {
    SCOPED_TRACE(drafts ? "drafts" : "plain");
    EngineOptions options = Options(drafts);
    options.kv_cache_tokens = kBlockTokens * 41;
    options.kv_host_cache_bytes = 4 << 20;
    const auto engine = Make(options);
    ExpectTokens(*engine, expected);
    EXPECT_GT(engine->Stats().kv.offloads, 0);
    EXPECT_GT(engine->Stats().kv.onboards, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, StageHostTierTest,
                         ::testing::Combine(::testing::Values("qwen2", "glm4_moe"),
                                            ::testing::Values(RankLayout{1, 2}, RankLayout{2, 2})),
                         [](const auto& info) {
                           return std::get<0>(info.param) + NameOf(std::get<1>(info.param));
                         });

class StageSlicesTest : public StagesEngineTest {};

// Steps with enough rows to be run in slices: cuts lie within prompts, and sequences decode beside
// them.
TEST_P(StageSlicesTest, ManyRowsAtOnceChangeNoToken) {
  const bool long_prompts = name() != "gemma2" && name() != "glm4_moe";
  EngineOptions options = Options(/*drafts=*/false);
  options.max_batch_size = 6;
  options.max_seq_len = long_prompts ? 1500 : 500;
  options.kv_cache_tokens = 0;
  options.kv_cache_bytes = 16 << 20;
  std::vector<Request> requests;
  for (const int32_t tokens : {450, 300, 20, 200, 380, 130}) {
    const int32_t length = long_prompts ? 3 * tokens : tokens;
    const auto i = static_cast<int32_t>(requests.size());
    Request request = SimpleRequest(CountingPrompt(length, i), 12);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<int32_t>> expected;
  {
    const auto alone = TestOnCuda() ? Make(options) : MakeFamilyEngine(name(), options, clock_);
    for (const Request& request : requests) {
      expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
    }
  }
  options.max_num_tokens = 4096;
  options.enable_prefix_reuse = false;
  const auto engine = Make(options);
  const auto got = RunRequests(*engine, requests);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i][0].tokens, expected[i]) << i;

  // Two of them decode by the time the others come.
  Outputs outputs;
  std::vector<RequestId> ids(requests.size());
  const auto submit = [&](size_t i) { ids[i] = engine->Submit(requests[i]).value(); };
  for (const size_t i : {2, 5}) submit(i);
  for (int step = 0; step < 4; ++step) engine->Step();
  ReadEvents(*engine, outputs);
  for (const size_t i : {2, 5}) {
    const Output& output = outputs[{ids[i], 0}];
    EXPECT_GT(output.tokens.size(), 0u);
    EXPECT_EQ(output.finish, FinishReason::kNone);
  }
  for (const size_t i : {0, 1, 3, 4}) submit(i);
  RunToEnd(*engine, outputs, requests.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const Output& output = outputs[{ids[i], 0}];
    EXPECT_EQ(output.tokens, expected[i]) << "request " << i;
  }
  engine->CheckIntegrity();
}

std::string NameOfSlices(const testing::TestParamInfo<StageSlicesTest::ParamType>& info) {
  return std::get<0>(info.param) + NameOf(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Stages, StageSlicesTest,
                         ::testing::Combine(::testing::Values("gemma2", "glm4_moe", "deepseek_v3",
                                                              "gpt_oss", "llama4_text"),
                                            ::testing::Values(RankLayout{1, 2})),
                         NameOfSlices);
INSTANTIATE_TEST_SUITE_P(SplitStages, StageSlicesTest,
                         ::testing::Combine(::testing::Values("gemma2", "glm4_moe"),
                                            ::testing::Values(RankLayout{2, 2})),
                         NameOfSlices);

}  // namespace
}  // namespace tandem
