// The engine with models whose layers have a window: these keep what their next tokens see, in
// blocks of their own, and the text is that of a cache that keeps everything.
#include <gtest/gtest.h>

#include "model/kv_pool.h"
#include "runtime/testing/family_engine.h"

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 8;

class WindowBlocksTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  static EngineOptions Options() {
    EngineOptions options;
    options.max_batch_size = 3;
    options.max_num_tokens = 16;
    options.max_seq_len = 320;
    options.block_tokens = kBlockTokens;
    options.draft_mode = DraftMode::kOff;
    return options;
  }
  std::unique_ptr<Engine> Make(EngineOptions options, int32_t num_blocks) {
    const ModelSpec spec = FamilySpec(GetParam());
    window_ = static_cast<int32_t>(LongestWindow(spec));
    // Window blocks for every slot and a step, and this many of the others.
    const bool drafts = options.draft_mode != DraftMode::kOff;
    options.kv_cache_bytes = int64_t{kBlockTokens} * num_blocks *
                             (spec.KvBytesPerToken(FamilyTargetType()) +
                              (drafts ? spec.KvBytesPerToken(kFamilyDraftType) : 0));
    return MakeFamilyEngine(GetParam(), options, clock_);
  }

  SteadyClock clock_;
  int32_t window_ = 0;
};

TEST_P(WindowBlocksTest, ASequenceOfTenWindowsHoldsOneAndAChunk) {
  EngineOptions options = Options();
  options.max_seq_len = 400;
  const auto engine = Make(options, 60);
  EXPECT_GT(engine->Stats().kv.total_window_blocks, 0);
  EXPECT_LT(engine->Stats().kv.total_window_blocks, engine->Stats().kv.total_blocks);
  const int32_t length = 10 * window_;
  ASSERT_TRUE(engine->Submit(SimpleRequest(CountingPrompt(length, 0), 60)).ok());
  Outputs outputs;
  int32_t most_windows = 0, most_blocks = 0;
  for (bool ended = false; !ended;) {
    engine->Step();
    ReadEvents(*engine, outputs);
    most_windows = std::max(most_windows, engine->Stats().kv.referenced_window_blocks);
    most_blocks = std::max(most_blocks, engine->Stats().kv.referenced_blocks);
    ended = !outputs.empty() && outputs.begin()->second.finish != FinishReason::kNone;
  }
  EXPECT_EQ(outputs.begin()->second.tokens.size(), 60u);
  EXPECT_GE(most_blocks, length / kBlockTokens);
  const int32_t seen = window_ + options.max_num_tokens;
  EXPECT_LE(most_windows, (seen + kBlockTokens - 1) / kBlockTokens + 1);
  EXPECT_GE(most_windows, window_ / kBlockTokens);
}

TEST_P(WindowBlocksTest, DraftsPrefixesChunksAndPreemptionChangeNoToken) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    // Two share a long beginning, which more than fills the window.
    Request request = SimpleRequest(CountingPrompt(20 + 30 * i, i / 2), 100);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(request));
  }
  EngineOptions whole = Options();
  whole.max_batch_size = 16;
  const auto alone = Make(whole, 45);
  ASSERT_EQ(alone->Stats().kv.total_window_blocks, 0) << "all slots need more than there are";
  std::vector<std::vector<int32_t>> expected;
  for (const Request& request : requests) {
    expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
  }
  for (const bool drafts : {false, true}) {
    for (const ExecutorKind executor : {ExecutorKind::kAuto, ExecutorKind::kDevice}) {
      SCOPED_TRACE(drafts ? "drafts" : "plain");
      EngineOptions options = Options();
      options.executor = executor;
      if (drafts) {
        options.draft_mode = DraftMode::kFixed;
        options.fixed_draft_len = 3;
      }
      const auto engine = Make(options, 45);
      ASSERT_GT(engine->Stats().kv.total_window_blocks, 0);
      int64_t cached = 0;
      for (int round = 0; round < 2; ++round) {
        const auto got = RunRequests(*engine, requests);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i][0].tokens, expected[i]) << "request " << i << ", round " << round;
          cached += got[i][0].usage.cached_tokens;
        }
      }
      EXPECT_GT(cached, 0);
    }
  }
}

// Without room for three long ones at once.
TEST_P(WindowBlocksTest, PausesChangeNoToken) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) requests.push_back(SimpleRequest(CountingPrompt(60, 7 * i), 150));
  EngineOptions options = Options();
  const auto alone = Make(options, 150);
  std::vector<std::vector<int32_t>> expected;
  for (const Request& request : requests) {
    expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
  }
  options.max_seq_len = 212;
  options.kv_cache_tokens = 400;
  const auto engine = Make(options, 150);
  ASSERT_GT(engine->Stats().kv.total_window_blocks, 0);
  const auto got = RunRequests(*engine, requests);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i][0].tokens, expected[i]) << i;
  EXPECT_GT(engine->Stats().preemptions, 0);
}

// Rows of drafts that were rejected hold no window block until the text has caught up with them:
// those of sequences that are verified one after another would add up.
TEST_P(WindowBlocksTest, RejectedDraftsOfManySlotsKeepNothing) {
  for (const int32_t slots : {8, 16}) {
    for (const ExecutorKind executor : {ExecutorKind::kAuto, ExecutorKind::kDevice}) {
      SCOPED_TRACE(slots);
      EngineOptions options = Options();
      options.executor = executor;
      options.max_batch_size = slots;
      options.max_num_tokens = slots + 32;
      const auto engine = Make(options, slots * 45);
      ASSERT_GT(engine->Stats().kv.total_window_blocks, 0);
      std::vector<Request> requests;
      for (int32_t i = 0; i < slots; ++i) {
        requests.push_back(SimpleRequest(CountingPrompt(2 * window_ + 1, i), 60));
      }
      const auto expected = RunRequests(*engine, requests);
      for (Request& request : requests) request.draft.tokens = std::vector<int32_t>(32, 1);
      Outputs outputs;
      for (const Request& request : requests) ASSERT_TRUE(engine->Submit(request).ok());
      RunToEnd(*engine, outputs, requests.size());
      size_t i = 0;
      for (const auto& [id, output] : outputs) {
        EXPECT_EQ(output.tokens, expected[i++][0].tokens);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, WindowBlocksTest,
                         ::testing::Values("mistral", "gemma2", "gemma3_text", "gpt_oss",
                                           "llama4_text"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem
