// Drafts that a client sends with a request: token match gives the tokens of plain decoding, the
// ratio rule the target's law, although the client draws with the request's own seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/testing/test_engine.h"
#include "runtime/testing/test_law.h"

namespace tandem {
namespace {

using testing::HasSubstr;

struct EngineCase {
  std::string name;
  std::function<void(TestSetup&)> change;
};

const EngineCase kEngineCases[] = {
    {"without_drafts", [](TestSetup&) {}},
    {"drafts", [](TestSetup& s) { s.options.draft_mode = DraftMode::kFixed; }},
    {"adaptive", [](TestSetup& s) { s.options.draft_mode = DraftMode::kAdaptive; }},
    {"lookups",
     [](TestSetup& s) {
       s.options.draft_mode = DraftMode::kFixed;
       s.options.lookup_ngram = 1;
     }},
    {"small_chunks", [](TestSetup& s) { s.options.max_num_tokens = 20; }},
    {"whole_prompts",
     [](TestSetup& s) {
       s.options.max_num_tokens = 80;
       s.options.enable_chunked_prefill = false;
     }},
    {"reserved", [](TestSetup& s) { s.options.policy = SchedulerPolicy::kGuaranteedNoEvict; }},
    {"preemption", [](TestSetup& s) { s.num_blocks = 36; }}};

class SentDraftsTest : public testing::TestWithParam<std::tuple<EngineCase, int32_t>> {
 protected:
  void SetUp() override {
    if (TestOnCuda()) GTEST_SKIP() << "of formulas, which the host computes";
    setup_.options = SmallOptions();
    setup_.options.steps_in_flight = std::get<1>(GetParam());
    std::get<0>(GetParam()).change(setup_);
  }
  static std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (int32_t i = 0; i < 14; ++i) {
      Request request = SimpleRequest(CountingPrompt(1 + 8 * (i % 7), i % 3), 20 + i);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      if (i % 4 == 1) request.sampling.repetition_penalty = 1.3f;
      if (i % 4 == 3) request.sampling.num_top_logprobs = 2;
      if (i == 5 || i == 6) request.end_ids = {3, 9, 30};
      if (i == 3) request.num_choices = 2;
      if (i == 12) request.max_draft_len = 0;
      request.return_context_logits = i % 5 == 2;
      request.return_generation_logits = i % 3 == 1;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  FakeClock clock_;
  TestSetup setup_;
};

// Right drafts up to a place that differs from request to request, then wrong ones.
TEST_P(SentDraftsTest, TokenMatchGivesTheTokensOfPlainDecoding) {
  TestSetup plain_setup = setup_;
  plain_setup.options.draft_mode = DraftMode::kOff;
  std::vector<Request> requests = Requests();
  const auto plain = RunRequests(*MakeTestEngine(plain_setup, clock_), requests);
  std::vector<int32_t> right(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int32_t>& tokens = plain[i][0].tokens;
    const size_t most = std::min<size_t>(tokens.size(), 11);
    const size_t count = std::min(i, most);
    requests[i].draft.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
    right[i] = static_cast<int32_t>(count);
    if (count < most && i % 3 == 0) requests[i].draft.tokens.push_back((tokens[count] + 1) % 48);
  }
  const auto engine = MakeTestEngine(setup_, clock_);
  for (int round = 0; round < 2; ++round) {  // the second finds the prompts in the cache
    const auto got = RunRequests(*engine, requests);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "request " << i);
      for (size_t c = 0; c < got[i].size(); ++c) {
        EXPECT_EQ(got[i][c].tokens, plain[i][c].tokens);
        EXPECT_EQ(got[i][c].finish, plain[i][c].finish);
        EXPECT_TRUE(got[i][c].context_logits == plain[i][c].context_logits);
        EXPECT_TRUE(got[i][c].generation_logits == plain[i][c].generation_logits);
      }
      EXPECT_GE(got[i][0].usage.drafts_accepted, right[i]);
      EXPECT_GE(got[i][0].usage.drafts_proposed,
                static_cast<int32_t>(requests[i].draft.tokens.size()));
    }
  }
}

TEST_P(SentDraftsTest, RightDraftsCostOneStep) {
  setup_.options.draft_mode = DraftMode::kOff;
  Request request = SimpleRequest(CountingPrompt(6, 1), 12);
  const auto engine = MakeTestEngine(setup_, clock_);
  const Output plain = RunRequests(*engine, {request})[0][0];
  const int64_t steps = engine->Stats().steps;
  request.draft.tokens.assign(plain.tokens.begin(), plain.tokens.begin() + 11);
  EXPECT_EQ(RunRequests(*engine, {request})[0][0].tokens, plain.tokens);
  EXPECT_LE(engine->Stats().steps - steps, 3) << "of " << steps;
}

TEST_P(SentDraftsTest, AThresholdAcceptsByTheTargetsProbability) {
  Request request = SimpleRequest(CountingPrompt(6, 1), 12);
  request.sampling.temperature = 1.0f;
  const FormulaPass target(setup_.target, 1);
  // The second most likely token of each position, and its probability.
  std::vector<int32_t> context = request.prompt;
  std::vector<double> probabilities;
  for (int i = 0; i < 5; ++i) {
    const std::vector<float> logits = target.Logits(context);
    std::vector<int32_t> order(48);
    for (int32_t token = 0; token < 48; ++token) order[static_cast<size_t>(token)] = token;
    std::ranges::sort(order, std::greater(),
                      [&](int32_t token) { return logits[static_cast<size_t>(token)]; });
    double total = 0.0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    const int32_t token = order[1];
    probabilities.push_back(std::exp(static_cast<double>(logits[static_cast<size_t>(token)])) /
                            total);
    request.draft.tokens.push_back(token);
    context.push_back(token);
  }
  const auto engine = MakeTestEngine(setup_, clock_);
  for (const float threshold : {0.0f, 0.05f, 0.1f, 0.15f, 0.2f, 0.3f, 1.0f}) {
    request.draft.threshold = threshold;
    size_t held = 0;
    while (held < 5 && probabilities[held] >= static_cast<double>(threshold)) ++held;
    const Output output = RunRequests(*engine, {request})[0][0];
    ASSERT_EQ(output.tokens.size(), 12u);
    EXPECT_TRUE(std::equal(output.tokens.begin(),
                           output.tokens.begin() + static_cast<ptrdiff_t>(held),
                           request.draft.tokens.begin()))
        << threshold;
    if (setup_.options.draft_mode == DraftMode::kOff) {
      EXPECT_EQ(output.usage.drafts_accepted, static_cast<int32_t>(held)) << threshold;
      EXPECT_EQ(output.usage.drafts_proposed, 5);
    }
  }
}

// What the client would have drawn itself from the target holds to the last token.
TEST_P(SentDraftsTest, DraftsWithTheTargetsOwnLogitsHold) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) {
    Request request = SimpleRequest(CountingPrompt(3 + i, i), 16);
    request.seed = static_cast<uint64_t>(i);
    request.sampling.temperature = 0.9f;
    request.sampling.top_k = i % 2 == 0 ? 0 : 20;
    request.sampling.num_top_logprobs = 0;
    if (i % 3 == 1) request.sampling.frequency_penalty = 0.3f;
    request.draft = DraftAlone(request, setup_.target, 7);
    requests.push_back(std::move(request));
  }
  const auto got = RunRequests(*MakeTestEngine(setup_, clock_), requests);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i][0].tokens.size(), 16u);
    EXPECT_TRUE(std::equal(requests[i].draft.tokens.begin(), requests[i].draft.tokens.end(),
                           got[i][0].tokens.begin()));
    EXPECT_LE(got[i][0].details[3].logprob, 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, SentDraftsTest,
                         testing::Combine(testing::ValuesIn(kEngineCases), testing::Values(0, 1)),
                         [](const testing::TestParamInfo<std::tuple<EngineCase, int32_t>>& info) {
                           return std::get<0>(info.param).name + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(SentDrafts, AreRefusedByNameWhereTheyCannotBeVerified) {
  if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  const auto engine = MakeTestEngine(setup, clock);
  const auto refusal = [&](auto change) {
    Request request = SimpleRequest({1, 2, 3}, 50);
    request.draft.tokens = {4, 5};
    change(request);
    const Status status = engine->Submit(request).status();
    return status.field() + ": " + status.message();
  };
  EXPECT_THAT(refusal([](Request& r) { r.draft.tokens.assign(33, 1); }),
              HasSubstr("draft: draft holds 33 tokens; this server verifies at most 32"));
  EXPECT_THAT(refusal([](Request& r) { r.draft.tokens = {48}; }),
              HasSubstr("draft: draft holds token 48; the vocabulary goes from 0 to 47"));
  EXPECT_THAT(refusal([](Request& r) { r.draft.logits.resize(95); }),
              HasSubstr("draft.logits holds 95 values; 2 tokens need 96, 48 for each"));
  EXPECT_THAT(refusal([](Request& r) { r.draft.threshold = 1.5f; }),
              HasSubstr("draft.threshold must be between 0 and 1; it is 1.5"));
  const auto constrained = [](Request& r) { r.constraint = std::make_shared<NoTwins>(); };
  EXPECT_THAT(refusal([&](Request& r) {
                constrained(r);
                r.draft.threshold = 0.5f;
              }),
              HasSubstr("draft.threshold cannot be combined"));
  EXPECT_THAT(refusal([&](Request& r) {
                constrained(r);
                r.draft.logits.resize(96);
              }),
              HasSubstr("draft.logits cannot be combined"));
  setup.options.max_num_tokens = setup.options.max_batch_size;
  const auto narrow = MakeTestEngine(setup, clock);
  Request request = SimpleRequest({1, 2, 3}, 5);
  request.draft.tokens = {4};
  EXPECT_THAT(narrow->Submit(request).status().message(), HasSubstr("verifies at most 0"));
}

TEST(SentDrafts, MayHoldTokensThatAConstraintForbids) {
  if (TestOnCuda()) GTEST_SKIP() << "of formulas, which the host computes";
  for (const bool ratio : {false, true}) {
    FakeClock clock;
    TestSetup setup;
    setup.options = SmallOptions();
    setup.options.draft_mode = DraftMode::kFixed;
    setup.options.ratio_acceptance = ratio;
    setup.target.vocab = setup.draft.vocab = 20;
    const auto engine = MakeTestEngine(setup, clock);
    Request request = SimpleRequest({1, 3, 2}, 20);
    request.constraint = std::make_shared<NoTwins>();
    const Output plain = RunRequests(*engine, {request})[0][0];
    request.draft.tokens.assign(plain.tokens.begin(), plain.tokens.begin() + 4);
    request.draft.tokens.push_back(plain.tokens[3]);
    request.draft.tokens.push_back(plain.tokens[5]);
    const Output output = RunRequests(*engine, {request})[0][0];
    EXPECT_EQ(output.tokens, plain.tokens);
    EXPECT_GE(output.usage.drafts_accepted, 4);
  }
}

// ---- The law ----

struct SentLawCase {
  std::string name;
  std::function<void(Request&)> set;
};

class SentDraftsLawTest : public testing::TestWithParam<std::tuple<LawModels, SentLawCase>> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  static constexpr FormulaModel kClient = {.vocab = 5, .share = 0.5, .scale = 3.0f};
  static Drawn DrawWith(const TestSetup& setup, const Request& request, int32_t draws, bool lies) {
    return Draw(setup, request, draws, [lies](Request& one) {
      one.draft = DraftAlone(one, kClient, 2);
      if (lies) std::ranges::fill(one.draft.logits, 1.0f);
    });
  }
  static Request MakeRequest() {
    Request request = LawRequest();
    std::get<1>(GetParam()).set(request);
    return request;
  }
};

TEST_P(SentDraftsLawTest, TheTargetsLawHolds) {
  const LawModels models = std::get<0>(GetParam());
  const Request request = MakeRequest();
  for (const DraftMode mode : {DraftMode::kOff, DraftMode::kFixed}) {
    TestSetup setup = LawSetup(models);
    setup.options.draft_mode = mode;
    setup.options.ratio_acceptance = mode == DraftMode::kFixed;
    const Drawn drawn = DrawWith(setup, request, DrawsOf(models) / 2, false);
    EXPECT_GT(drawn.stats.drafts_accepted, drawn.draws / 2);
    EXPECT_LT(drawn.stats.drafts_accepted, drawn.stats.drafts_proposed);
    EXPECT_LT(Measure(setup, request, drawn), kHolds);
  }
}

// As an engine draws that itself verifies drafts by the ratio rule.
TEST_P(SentDraftsLawTest, TheTargetsLawHoldsWhateverNoiseTheClientDrewWith) {
  const LawModels models = std::get<0>(GetParam());
  const Request request = MakeRequest();
  TestSetup setup = LawSetup(models);
  setup.options.draft_mode = DraftMode::kOff;
  for (const auto stream : {ops::NoiseStream::kAccept, ops::NoiseStream::kResidual}) {
    const Drawn drawn = Draw(setup, request, DrawsOf(models) / 2, [stream](Request& one) {
      one.draft = DraftAlone(one, kClient, 2, stream);
    });
    EXPECT_LT(Measure(setup, request, drawn), kHolds);
  }
}

TEST_P(SentDraftsLawTest, WrongLogitsAreDetected) {
  TestSetup setup = LawSetup(std::get<0>(GetParam()));
  setup.options.draft_mode = DraftMode::kOff;
  const Request request = MakeRequest();
  EXPECT_GT(Measure(setup, request, DrawWith(setup, request, kControlDraws, true)), kHolds);
}

const SentLawCase kSentLawCases[] = {{"plain", [](Request&) {}},
                                     {"temperature_and_top_k",
                                      [](Request& r) {
                                        r.sampling.temperature = 1.4f;
                                        r.sampling.top_k = 4;
                                      }},
                                     {"penalties_and_top_p", [](Request& r) {
                                        r.sampling.top_p = 0.9f;
                                        r.sampling.repetition_penalty = 1.5f;
                                        r.sampling.frequency_penalty = 0.4f;
                                      }}};

INSTANTIATE_TEST_SUITE_P(Options, SentDraftsLawTest,
                         testing::Combine(testing::ValuesIn(LawModelsHere()),
                                          testing::ValuesIn(kSentLawCases)),
                         LawTestName<SentLawCase>);

}  // namespace
}  // namespace tandem
