// The engine with host memory for evicted blocks: a working set of four times the cache, asked for
// again and again, gives the text of plain decoding, and what was computed once is found again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/testing/family_engine.h"

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 8;
constexpr int32_t kBlocks = 22;  // fewer than two requests need
constexpr int32_t kPrompt = 64;
constexpr int32_t kOutput = 40;
constexpr int32_t kRequests = 8;

EngineOptions Options(bool drafts) {
  EngineOptions options;
  options.max_batch_size = 4;
  options.max_num_tokens = 32;
  options.max_seq_len = 120;
  options.block_tokens = kBlockTokens;
  options.draft_mode = drafts ? DraftMode::kFixed : DraftMode::kOff;
  options.fixed_draft_len = 3;
  return options;
}

class HostTierTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  int64_t BlockBytes(bool drafts) const {
    const ModelSpec spec = FamilySpec(GetParam());
    return kBlockTokens * (spec.KvBytesPerToken(FamilyTargetType()) +
                           (drafts ? spec.KvBytesPerToken(kFamilyDraftType) : 0));
  }
  std::unique_ptr<Engine> Make(EngineOptions options, int32_t num_host_blocks) {
    const int64_t bytes = BlockBytes(options.draft_mode != DraftMode::kOff);
    options.kv_cache_bytes = kBlocks * bytes;
    options.kv_host_cache_bytes = num_host_blocks * bytes;
    return MakeFamilyEngine(GetParam(), options, clock_);
  }
  // Prompts that share nothing: together they fill the cache four times.
  static std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (int32_t i = 0; i < kRequests; ++i) {
      Request request = SimpleRequest(CountingPrompt(kPrompt, 5 * i + 1), kOutput);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
      request.seed = static_cast<uint64_t>(i);
      requests.push_back(std::move(request));
    }
    return requests;
  }
  std::vector<std::vector<int32_t>> Expected() {
    EngineOptions options = Options(false);
    options.enable_prefix_reuse = false;
    const auto alone = Make(options, 0);
    std::vector<std::vector<int32_t>> expected;
    for (const Request& request : Requests()) {
      expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
    }
    return expected;
  }

  SteadyClock clock_;
};

// Each request after the other: without host memory nothing is ever found again.
TEST_P(HostTierTest, AWorkingSetOfFourCachesIsFoundAgain) {
  const auto expected = Expected();
  for (const bool drafts : {false, true}) {
    for (const int32_t steps_in_flight : {0, 1}) {
      for (const ExecutorKind executor : {ExecutorKind::kAuto, ExecutorKind::kDevice}) {
        for (const int32_t num_host_blocks : {0, 5 * kBlocks}) {
          SCOPED_TRACE(testing::Message() << (drafts ? "drafts, " : "") << steps_in_flight
                                          << " in flight, " << num_host_blocks << " host blocks");
          EngineOptions options = Options(drafts);
          options.steps_in_flight = steps_in_flight;
          options.executor = executor;
          const auto engine = Make(options, num_host_blocks);
          for (int round = 0; round < 3; ++round) {
            for (size_t i = 0; i < expected.size(); ++i) {
              const Output got = RunRequests(*engine, {Requests()[i]})[0][0];
              EXPECT_EQ(got.tokens, expected[i]) << "request " << i << ", round " << round;
              const bool found = round > 0 && num_host_blocks > 0;
              // One token is left to compute.
              EXPECT_EQ(got.usage.cached_tokens, found ? kPrompt - 1 : 0)
                  << "request " << i << ", round " << round;
            }
          }
          const KvCacheStats stats = engine->Stats().kv;
          EXPECT_EQ(stats.total_blocks, kBlocks);
          EXPECT_EQ(stats.total_host_blocks, num_host_blocks);
          EXPECT_EQ(stats.offloads > 0, num_host_blocks > 0);
          EXPECT_EQ(stats.onboards > 0, num_host_blocks > 0);
          EXPECT_LE(stats.used_host_bytes, num_host_blocks * BlockBytes(drafts));
          engine->CheckIntegrity();
        }
      }
    }
  }
}

// All at once, with pauses and a tier that loses some; and cancelled after every number of steps.
TEST_P(HostTierTest, PausesAndCancellationsChangeNoToken) {
  const auto expected = Expected();
  for (const bool drafts : {false, true}) {
    for (const int32_t steps_in_flight : {0, 1}) {
      SCOPED_TRACE(testing::Message() << (drafts ? "drafts, " : "") << steps_in_flight);
      EngineOptions options = Options(drafts);
      options.steps_in_flight = steps_in_flight;
      const auto engine = Make(options, 2 * kBlocks);
      for (int round = 0; round < 3; ++round) {
        const auto got = RunRequests(*engine, Requests());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i][0].tokens, expected[i]) << "request " << i << ", round " << round;
        }
      }
      EXPECT_GT(engine->Stats().preemptions, 0);
      for (int steps = 0; steps < 12; ++steps) {
        std::vector<RequestId> ids;
        for (const Request& request : Requests()) {
          const Result<RequestId> id = engine->Submit(request);
          ASSERT_TRUE(id.ok());
          ids.push_back(*id);
        }
        for (int step = 0; step < steps; ++step) engine->Step();
        for (size_t i = 0; i < ids.size(); i += 2) engine->Cancel(ids[i]);
        Outputs outputs;
        RunToEnd(*engine, outputs, ids.size());
        while (engine->Step()) {
        }
        for (size_t i = 1; i < ids.size(); i += 2) {
          EXPECT_EQ((outputs[{ids[i], 0}].tokens), expected[i]) << i << " after " << steps;
        }
        engine->CheckIntegrity();
      }
      EXPECT_EQ(engine->Stats().kv.referenced_blocks, 0);
      EXPECT_GT(engine->Stats().kv.onboards, 0);
    }
  }
}

// A cache of exactly one longest sequence: what the host has never keeps a request out.
TEST_P(HostTierTest, ALoneRequestThatFillsTheCacheIsServedAgain) {
  for (const bool drafts : {false, true}) {
    EngineOptions options = Options(drafts);
    options.max_seq_len = kBlocks * kBlockTokens;
    const auto engine = Make(options, 2 * kBlocks);
    const Request longest = SimpleRequest(CountingPrompt(options.max_seq_len - 30, 3), 30);
    const Request other = SimpleRequest(CountingPrompt(options.max_seq_len - 30, 4), 30);
    const auto first = RunRequests(*engine, {longest})[0][0].tokens;
    for (int round = 0; round < 3; ++round) {
      RunRequests(*engine, {other});
      EXPECT_EQ(RunRequests(*engine, {longest})[0][0].tokens, first);
    }
    EXPECT_GT(engine->Stats().kv.onboards, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, HostTierTest,
                         ::testing::Values("qwen2", "llama_yarn", "qwen3", "deepseek_v2_lite"),
                         [](const auto& info) { return std::string(info.param); });

class HostTierOptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  Result<std::unique_ptr<Engine>> Make(const std::string& family, const EngineOptions& options) {
    return Engine::Create(options, LoadFamily(family, FamilyTargetType(), options.max_seq_len), {},
                          TestBackend(), clock_);
  }
  SteadyClock clock_;
};

TEST_F(HostTierOptionsTest, OptionsThatBringNothingBackKeepNothing) {
  EngineOptions options = Options(false);
  options.kv_cache_bytes = options.kv_host_cache_bytes = 1 << 20;
  EXPECT_GT((*Make("qwen2", options))->Stats().kv.total_host_blocks, 0);
  for (const auto change :
       {+[](EngineOptions& o) { o.kv_onboard_blocks = false; },
        +[](EngineOptions& o) { o.kv_offload_min_priority = kBlockPriority + 1; },
        +[](EngineOptions& o) { o.enable_prefix_reuse = false; }}) {
    EngineOptions changed = options;
    change(changed);
    const auto engine = Make("qwen2", changed);
    ASSERT_TRUE(engine.ok());
    EXPECT_EQ((*engine)->Stats().kv.total_host_blocks, 0);
    EXPECT_EQ((*engine)->options().kv_host_cache_bytes, 0);
  }
}

TEST_F(HostTierOptionsTest, RefusesWhatCannotBe) {
  using ::testing::HasSubstr;
  EngineOptions options = Options(false);
  options.max_batch_size = 1;
  options.max_seq_len = 320;
  options.kv_cache_bytes = 4 << 20;
  options.kv_host_cache_bytes = 1 << 20;
  const auto windowed = Make("mistral", options);
  ASSERT_FALSE(windowed.ok());
  EXPECT_EQ(windowed.status().code(), Code::kUnimplemented);
  EXPECT_THAT(windowed.status().message(), HasSubstr("kv_host_cache_bytes"));
  options.kv_host_cache_bytes = 10;
  const auto small = Make("qwen2", options);
  EXPECT_EQ(small.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(small.status().message(), HasSubstr("one block of 8 tokens needs"));
  options.kv_host_cache_bytes = int64_t{1} << 50;
  const auto large = Make("qwen2", options);
  EXPECT_EQ(large.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(large.status().message(), HasSubstr("kv_host_cache_bytes"));
}

}  // namespace
}  // namespace tandem
