// The engine with models whose prompts see themselves both ways (ChatGLM-6B, GLM-10B): what their
// prompts need, what they share, and that the executors agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/testing/family_engine.h"

namespace tandem {
namespace {

class PrefixMaskTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  static const ModelSpec& Spec() {
    static std::map<std::string, ModelSpec> specs;
    auto& spec = specs[GetParam()];
    if (spec.layers.empty()) spec = FamilySpec(GetParam());
    return spec;
  }
  static EngineOptions Options() {
    EngineOptions options;
    options.max_batch_size = 4;
    options.max_num_tokens = 64;
    options.max_seq_len = 120;
    options.block_tokens = 8;
    options.kv_cache_bytes = 8 << 20;
    options.draft_mode = DraftMode::kOff;
    return options;
  }
  std::unique_ptr<Engine> Make(const EngineOptions& options) {
    return MakeFamilyEngine(GetParam(), options, clock_);
  }
  // A text of `length` tokens and what stands after it; its last token is `last`.
  static std::vector<int32_t> Prompt(int32_t length, int32_t last) {
    std::vector<int32_t> prompt = CountingPrompt(length - 1, 0, 100);
    prompt.insert(prompt.end(), {last, Spec().prefix.mask_ids.front(), Spec().prefix.start_id});
    return prompt;
  }
  static Output Run(Engine& engine, const std::vector<int32_t>& prompt) {
    return RunRequests(engine, {SimpleRequest(prompt, 10)})[0][0];
  }

  SteadyClock clock_;
};

TEST_P(PrefixMaskTest, OnlyEqualTextsShareBlocks) {
  const std::vector<int32_t> one = Prompt(40, 5), other = Prompt(40, 6), longer = Prompt(48, 5);
  std::vector<int32_t> continued = one;
  continued.insert(continued.end(), {7, 8, 9});
  const auto engine = Make(Options());
  const Output first = Run(*engine, one);
  EXPECT_EQ(Run(*engine, other).usage.cached_tokens, 0);
  EXPECT_EQ(Run(*engine, longer).usage.cached_tokens, 0);
  const Output again = Run(*engine, one);
  EXPECT_GE(again.usage.cached_tokens, 40);
  EXPECT_EQ(again.tokens, first.tokens);
  // What comes after the text sees all of it and is not seen.
  EXPECT_GE(Run(*engine, continued).usage.cached_tokens, 40);
}

TEST_P(PrefixMaskTest, RefusesPromptsThatItCannotLayOut) {
  const auto engine = Make(Options());
  const auto refusal = [&](const Request& request) {
    return std::string(engine->Submit(request).status().message());
  };
  EXPECT_THAT(refusal(SimpleRequest({1, 2, 3}, 4)),
              ::testing::StartsWith("prompt: does not hold the token"));
  EXPECT_THAT(refusal(SimpleRequest({1, 2, Spec().prefix.start_id}, 4)),
              ::testing::StartsWith("prompt: holds none of the tokens"));
  // All of it is computed in one step, of 64 tokens here.
  EXPECT_THAT(refusal(SimpleRequest(Prompt(80, 5), 4)), ::testing::HasSubstr("max_input_len"));
  Request request = SimpleRequest(Prompt(20, 5), 4);
  request.return_context_logits = true;
  EXPECT_THAT(refusal(request), ::testing::StartsWith("return_context_logits"));
}

TEST_P(PrefixMaskTest, ExecutorsAgreeWithDraftsAndPauses) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request request = SimpleRequest(Prompt(3 + 11 * i, i), 50);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<int32_t>> expected;
  const auto alone = Make(Options());
  for (const Request& request : requests) {
    expected.push_back(RunRequests(*alone, {request})[0][0].tokens);
  }
  EngineOptions options = Options();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  // Of 16 bits for the draft and of 32 for the target: a few blocks more than the longest needs.
  options.kv_cache_bytes =
      8 * 18 *
      (Spec().KvBytesPerToken(kFamilyDraftType) + Spec().KvBytesPerToken(FamilyTargetType()));
  for (const ExecutorKind executor : {ExecutorKind::kAuto, ExecutorKind::kDevice}) {
    options.executor = executor;
    const auto engine = Make(options);
    const auto got = RunRequests(*engine, requests);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i][0].tokens, expected[i]) << i;
    EXPECT_GT(engine->Stats().drafts_accepted, 0);
    EXPECT_GT(engine->Stats().preemptions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, PrefixMaskTest, ::testing::Values("chatglm6b", "glm10b"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem
