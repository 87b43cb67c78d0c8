// Engines whose models are split over ranks and stages, threads that compute on the CPU or each on
// a GPU of its own: every family gives the tokens of one rank, greedy and drawn, with drafts,
// shared prefixes, chunks, preemption and constraints; and a rank that fails ends the open requests
// and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/testing/failing_backend.h"
#include "runtime/testing/ranked_models.h"
#include "runtime/testing/triples.h"

namespace tandem {
namespace {

EngineOptions Options() {
  EngineOptions options = FamilyOptions();
  options.executor = TestExecutor();
  return options;
}

std::vector<Request> Requests(int64_t vocab) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request request = SimpleRequest(CountingPrompt(2 + 14 * i, i, vocab), 40);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    requests.push_back(std::move(request));
  }
  return requests;
}

// A family of each way to add to the stream, with grouped, few and latent heads, heads that are
// normed together, experts, windows and ALiBi.
const std::vector<std::string>& Models() {
  static const std::vector<std::string> names = {
      "mistral",         "qwen2",   "gemma2",    "bloom",  "gptj",
      "chatglm2_32k",    "mixtral", "qwen3_moe", "cohere", "deepseek_v2_lite",
      "gpt_bigcode_mqa", "olmo2"};
  return names;
}

class RanksEngineTest : public ::testing::TestWithParam<std::tuple<std::string, RankLayout>> {
 protected:
  std::unique_ptr<Engine> Make(const EngineOptions& options, const RankLayout& layout) {
    const auto& [name, most] = GetParam();
    if (layout.count() == 1) return MakeFamilyEngine(name, options, clock_);
    models_.ranks.clear();  // before their backends
    models_ = LoadRanks(name, layout, options.max_seq_len);
    if (options.draft_mode == DraftMode::kOff) {
      for (EngineRank& rank : models_.ranks) rank.draft = {};
    }
    auto engine = Engine::Create(options, models_.ranks, clock_);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  // In 16 bits the sums of several ranks are rounded otherwise than that of one; stages change
  // nothing.
  static RankLayout Reference() {
    RankLayout one;
    if (!TestOnCuda()) return one;
    one.ranks = std::get<1>(GetParam()).ranks;
    one.whole_experts = one.draft_whole_experts = std::get<1>(GetParam()).whole_experts;
    return one;
  }

  SteadyClock clock_;
  RankedModels models_;
};

TEST_P(RanksEngineTest, GivesTheTokensOfOneRank) {
  const auto& [name, split] = GetParam();
  if (!HasRanks(split.count())) GTEST_SKIP() << "fewer GPUs here";
  const int64_t vocab = FamilySpec(name).vocab_size;
  const auto expected = RunRequests(*Make(Options(), Reference()), Requests(vocab));
  const auto expect_same = [&](Engine& engine) {
    const auto got = RunRequests(engine, Requests(vocab));
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens) << "request " << i;
    }
  };
  expect_same(*Make(Options(), split));
  EngineOptions options = Options();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  for (const RankLayout& layout :
       {WithSplitDraft(split), split, WithDraftOn(split, split.count() - 1), WithOwnDraft(split, 1),
        WithOwnDraft(split, 2)}) {
    if (!HasRanks(layout.count())) continue;
    for (const bool scarce : {false, true}) {
      SCOPED_TRACE(NameOf(layout) + (scarce ? ", few blocks" : ", enough blocks"));
      options.kv_cache_tokens = scarce ? 16 * 9 : 0;
      const auto engine = Make(options, layout);
      expect_same(*engine);
      expect_same(*engine);  // with the prefixes of the first time
      EXPECT_GT(engine->Stats().drafts_accepted, 0);
      EXPECT_EQ(engine->Stats().preemptions > 0, scarce);
    }
  }
}

TEST_P(RanksEngineTest, MasksOfConstraintsReachEveryRank) {
  const auto& [name, split] = GetParam();
  if (!HasRanks(split.count())) GTEST_SKIP() << "fewer GPUs here";
  const auto vocab = static_cast<int32_t>(FamilySpec(name).vocab_size);
  std::vector<Request> requests = Requests(vocab);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 != 2) requests[i].constraint = std::make_shared<Triples>(vocab);
  }
  const auto expected = RunRequests(*Make(Options(), Reference()), requests);
  EngineOptions options = Options();
  options.draft_mode = DraftMode::kFixed;
  options.fixed_draft_len = 3;
  for (const int32_t lookup_ngram : {0, 2}) {
    for (const bool forced : {false, true}) {
      SCOPED_TRACE("lookup " + std::to_string(lookup_ngram) + (forced ? ", forced" : ""));
      options.lookup_ngram = lookup_ngram;
      options.draft_forced = forced;
      const auto engine = Make(options, WithSplitDraft(split));
      const auto got = RunRequests(*engine, requests);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i][0].tokens, expected[i][0].tokens) << "request " << i;
      }
      EXPECT_GT(engine->Stats().drafts_accepted, 0);
    }
  }
}

std::string ParamName(const testing::TestParamInfo<std::tuple<std::string, RankLayout>>& info) {
  return std::get<0>(info.param) + NameOf(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(One, RanksEngineTest,
                         ::testing::Combine(::testing::Values("mistral", "gemma2",
                                                              "deepseek_v2_lite"),
                                            ::testing::Values(RankLayout{1, 1})),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Two, RanksEngineTest,
                         ::testing::Combine(::testing::ValuesIn(Models()),
                                            ::testing::Values(RankLayout{2, 1}, RankLayout{1, 2})),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Three, RanksEngineTest,
                         ::testing::Combine(::testing::Values("gemma2", "glm4_moe", "gemma3_text"),
                                            ::testing::Values(RankLayout{1, 3})),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(ByExpert, RanksEngineTest,
                         ::testing::Combine(::testing::Values("mixtral", "qwen3_moe", "gpt_oss"),
                                            ::testing::Values(ByExpert({2, 1}))),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(Four, RanksEngineTest,
                         ::testing::Combine(::testing::Values("mistral", "qwen3_moe"),
                                            ::testing::Values(RankLayout{4, 1}, RankLayout{2, 2})),
                         ParamName);

// ---- Ranks that fail ----

class RanksFailureTest : public ::testing::TestWithParam<std::tuple<size_t, RankLayout>> {
 protected:
  void SetUp() override {
    if (!HasRanks(std::get<1>(GetParam()).count())) GTEST_SKIP() << "fewer GPUs here";
  }

  // Runs three requests, of which `constrained` have a constraint and which all fail: their errors.
  std::vector<Status> Fail(Engine& engine, int32_t constrained) {
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 3; ++i) {
      Request request = SimpleRequest(CountingPrompt(10, i), 100);
      if (i < constrained) {
        request.constraint =
            std::make_shared<Triples>(static_cast<int32_t>(FamilySpec("mistral").vocab_size));
      }
      ids.push_back(engine.Submit(std::move(request)).value());
    }
    Outputs outputs;
    RunToEnd(engine, outputs, ids.size());
    std::vector<Status> errors;
    for (const RequestId id : ids) {
      EXPECT_EQ((outputs[{id, 0}].finish), FinishReason::kFailed);
      errors.push_back(outputs[{id, 0}].error);
    }
    EXPECT_FALSE(engine.Submit(SimpleRequest({1, 2}, 5)).ok());
    EXPECT_FALSE(engine.Stats().failure.ok());
    return errors;
  }

  SteadyClock clock_;
  RankedModels models_;
};

TEST_P(RanksFailureTest, EveryOpenRequestIsAnsweredWhenARankLosesItsDevice) {
  const auto& [rank, split] = GetParam();
  for (const int32_t constrained : {0, 2, 3}) {
    for (const int waits : {1, 2, 7, 9}) {
      SCOPED_TRACE(std::to_string(constrained) + " constrained, lost after " +
                   std::to_string(waits) + " waits");
      models_.ranks.clear();
      models_ = LoadRanks("mistral", WithSplitDraft(split), Options().max_seq_len);
      ops::FailingBackend failing(*models_.ranks[rank].backend);
      models_.ranks[rank].backend = &failing;
      const auto engine = Engine::Create(Options(), models_.ranks, clock_).value();
      failing.LoseAfter(waits);
      for (const Status& error : Fail(*engine, constrained)) {
        EXPECT_EQ(error.code(), Code::kUnavailable);
        EXPECT_THAT(error.message(), testing::HasSubstr("the device is lost"));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, RanksFailureTest,
                         ::testing::Combine(::testing::Values(0, 1, 3),
                                            ::testing::Values(RankLayout{4, 1}, RankLayout{2, 2})),
                         [](const auto& info) {
                           return "Rank" + std::to_string(std::get<0>(info.param)) + "Of" +
                                  NameOf(std::get<1>(info.param));
                         });
INSTANTIATE_TEST_SUITE_P(OfTwoStages, RanksFailureTest,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Values(RankLayout{1, 2})),
                         [](const auto& info) {
                           return "Rank" + std::to_string(std::get<0>(info.param));
                         });

}  // namespace
}  // namespace tandem
