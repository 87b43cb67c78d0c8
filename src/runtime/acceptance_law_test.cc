// The output of speculation follows the target's law: the joint distribution of k + 2 tokens,
// counted over many seeds, is compared with the exact one in both acceptance modes; the acceptance
// rates of the modes are compared too.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/testing/test_engine.h"
#include "runtime/testing/test_law.h"

namespace tandem {
namespace {

struct LawCase {
  std::string name;
  std::function<void(Request&)> set;
};

class AcceptanceLawTest : public testing::TestWithParam<std::tuple<LawModels, LawCase>> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  static Request MakeRequest() {
    Request request = LawRequest();
    std::get<1>(GetParam()).set(request);
    return request;
  }
};

TEST_P(AcceptanceLawTest, RatioModeFollowsTheTarget) {
  TestSetup setup = LawSetup(std::get<0>(GetParam()));
  setup.options.ratio_acceptance = true;
  const Request request = MakeRequest();
  const Drawn drawn = Draw(setup, request, DrawsOf(std::get<0>(GetParam())));
  EXPECT_EQ(drawn.stats.drafts_proposed > drawn.draws, Drafts(setup, request));
  EXPECT_EQ(drawn.stats.drafts_accepted > 0, Drafts(setup, request));
  EXPECT_LT(Measure(setup, request, drawn), kHolds);
}

TEST_P(AcceptanceLawTest, TokenMatchFollowsTheTarget) {
  const TestSetup setup = LawSetup(std::get<0>(GetParam()));
  const Request request = MakeRequest();
  const Drawn drawn = Draw(setup, request, DrawsOf(std::get<0>(GetParam())));
  EXPECT_EQ(drawn.stats.drafts_accepted > 0, Drafts(setup, request));
  EXPECT_LT(Measure(setup, request, drawn), kHolds);
}

const LawCase kLawCases[] = {
    {"plain", [](Request&) {}},
    {"temperature_and_top_k",
     [](Request& r) {
       r.sampling.temperature = 1.4f;
       r.sampling.top_k = 4;
     }},
    {"top_p", [](Request& r) { r.sampling.top_p = 0.8f; }},
    {"penalties",
     [](Request& r) {
       r.sampling.repetition_penalty = 1.5f;
       r.sampling.frequency_penalty = 0.4f;
     }},
    {"mask", [](Request& r) { r.constraint = std::make_shared<NoTwins>(); }}};

INSTANTIATE_TEST_SUITE_P(Options, AcceptanceLawTest,
                         testing::Combine(testing::ValuesIn(LawModelsHere()),
                                          testing::ValuesIn(kLawCases)),
                         LawTestName<LawCase>);

class BiasedRuleTest : public testing::TestWithParam<LawModels> {};

TEST_P(BiasedRuleTest, IsDetected) {
  if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  TestSetup setup = LawSetup(GetParam());
  setup.options.ratio_acceptance = true;
  AllAlikeRound round(TestBackend(), setup.options);
  RuleBackend biased(TestBackend(), round);
  setup.backend = &biased;
  const Request request = LawRequest();
  EXPECT_GT(Measure(setup, request, Draw(setup, request, kControlDraws)), kHolds);
}

INSTANTIATE_TEST_SUITE_P(Models, BiasedRuleTest, testing::ValuesIn(LawModelsHere()),
                         [](const testing::TestParamInfo<LawModels>& info) {
                           return Name(info.param);
                         });

double AcceptanceRate(bool ratio) {
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.draft_mode = DraftMode::kFixed;
  setup.options.fixed_draft_len = 1;  // so that every proposed draft is tested
  setup.options.ratio_acceptance = ratio;
  setup.draft.share = 0.85;
  FakeClock clock;
  const auto engine = MakeTestEngine(setup, clock);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 100; ++i) {
    Request request = SimpleRequest(CountingPrompt(6, i), 200);
    request.sampling.temperature = 1.0f;
    request.seed = static_cast<uint64_t>(i);
    requests.push_back(std::move(request));
  }
  RunRequests(*engine, requests);
  const EngineStats stats = engine->Stats();
  return static_cast<double>(stats.drafts_accepted) / static_cast<double>(stats.drafts_proposed);
}

TEST(AcceptanceLaw, SharedNoiseAcceptsNearlyAsOftenAsTheRatioRule) {
  if (TestOnCuda())
    GTEST_SKIP() << "of formulas, which the host computes; embedded_pair_test asks a GPU";
  const double ratio = AcceptanceRate(true);
  EXPECT_GT(ratio, 0.5);
  EXPECT_GE(AcceptanceRate(false), 0.9 * ratio);
}

}  // namespace
}  // namespace tandem
