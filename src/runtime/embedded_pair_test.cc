// The embedded pair through the engine: the benefit of its draft in each acceptance mode, and that
// the draft changes no token.
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

#include "base/testing/source_dir.h"
#include "engine_folder/source.h"
#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

constexpr int32_t kAnswerTokens = 64;
constexpr int32_t kEnd = 2;  // </s>

// Words of the key in the pair's tokenization: tandem, formulated, telescopic, smallness, ...
const std::vector<std::vector<int32_t>>& Words() {
  static const std::vector<std::vector<int32_t>> words = {
      {90, 4949},           {571, 2326},       {90, 330, 282, 3044, 309},
      {1469, 432, 541},     {576, 3371, 263},  {83, 666, 2599},
      {271, 924, 584},      {5314, 406},       {998, 385, 890},
      {1033, 5943},         {504, 787},        {1301, 460},
      {425, 290, 462, 282}, {86, 3814, 343},   {627, 371, 5948},
      {89, 1676, 304, 591}, {6704, 81},        {75, 1501, 3491, 896},
      {86, 1892, 323, 406}, {2950, 265, 1040}, {1507, 806},
      {3637, 447},          {2907, 5038},      {5786, 585},
  };
  return words;
}

class EmbeddedPairTest : public testing::Test {
 protected:
  static EngineModel Load(const char* name) {
    const std::filesystem::path folder = SourceDir() / "models" / "dictionary" / name;
    ModelSource source = OpenModel(folder).value();
    return {LoadWeights(*source.weights, TestBackend(), 256).value(), name};
  }

  static void SetUpTestSuite() {
    if (!HasTestBackend()) return;
    target_ = new EngineModel(Load("target"));
    draft_ = new EngineModel(Load("draft"));
  }
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  static void TearDownTestSuite() {
    delete target_;
    delete draft_;
  }

  // With the costs of a test's engine: whether the chooser drafts must not depend on the machine's
  // other load.
  std::unique_ptr<Engine> Make(DraftMode mode, bool ratio, int32_t draft_len) {
    TestSetup setup;
    EngineOptions& options = setup.options;
    options.max_batch_size = 8;
    options.max_num_tokens = 128;
    options.max_seq_len = 128;
    options.draft_mode = mode;
    options.fixed_draft_len = draft_len;
    options.ratio_acceptance = ratio;
    options.executor = TestExecutor();
    setup.target.vocab = target_->weights->spec.vocab_size;
    setup.make_models = [setup](const SchedulerLimits& limits) {
      return MakeModels(*target_, *draft_, setup, limits);
    };
    return MakeTestEngine(setup, clock_);
  }

  // What does "..." mean?
  static std::vector<Request> Questions(int32_t num_choices) {
    std::vector<Request> questions;
    for (const std::vector<int32_t>& word : Words()) {
      std::vector<int32_t> prompt = {1, 1712, 1707, 276};
      prompt.insert(prompt.end(), word.begin(), word.end());
      prompt.insert(prompt.end(), {8, 1099, 37});
      Request request = SimpleRequest(std::move(prompt), kAnswerTokens);
      request.end_ids = {kEnd};
      request.seed = static_cast<uint64_t>(questions.size());
      request.num_choices = num_choices;
      questions.push_back(std::move(request));
    }
    return questions;
  }

  // With one draft a round every proposed draft is tested.
  double AcceptanceRate(bool ratio) {
    std::vector<Request> questions = Questions(4);
    for (Request& question : questions) question.sampling.temperature = 1.0f;
    const auto engine = Make(DraftMode::kFixed, ratio, 1);
    RunRequests(*engine, questions);
    const EngineStats stats = engine->Stats();
    return static_cast<double>(stats.drafts_accepted) / static_cast<double>(stats.drafts_proposed);
  }

  static EngineModel* target_;
  static EngineModel* draft_;
  FakeClock clock_;
};

EngineModel* EmbeddedPairTest::target_ = nullptr;
EngineModel* EmbeddedPairTest::draft_ = nullptr;

TEST_F(EmbeddedPairTest, SharedNoiseAcceptsAtLeastNineTenthsOfWhatTheRatioRuleDoes) {
  const double ratio = AcceptanceRate(true);
  const double match = AcceptanceRate(false);
  std::cout << "accepted: " << match << " by token match, " << ratio << " by ratio\n";
  EXPECT_GT(ratio, 0.5);
  EXPECT_GE(match, 0.9 * ratio) << "ratio mode " << ratio;
}

TEST_F(EmbeddedPairTest, TheDraftChangesNoToken) {
  std::vector<Request> requests = Questions(1);
  for (size_t i = 0; i < requests.size(); i += 2) requests[i].sampling.temperature = 1.5f;
  const auto plain = RunRequests(*Make(DraftMode::kOff, false, 0), requests);
  for (const DraftMode mode : {DraftMode::kFixed, DraftMode::kAdaptive}) {
    const auto engine = Make(mode, false, 4);
    const auto drafted = RunRequests(*engine, requests);
    EXPECT_GT(engine->Stats().drafts_accepted, 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(drafted[i][0].tokens, plain[i][0].tokens) << "request " << i;
    }
  }
}

}  // namespace
}  // namespace tandem
