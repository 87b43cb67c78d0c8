// The engine from its callers' view: submitting, events, limits, cancellation, deadlines, draining.
#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <tuple>

#include "base/reason.h"
#include "runtime/request/validate_request.h"
#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class EngineTest : public testing::Test {
 protected:
  void Make() { engine_ = MakeTestEngine(setup_, clock_); }
  void SetUp() override {
    setup_.options = SmallOptions();
    Make();
  }
  Output RunOne(const Request& request) { return RunRequests(*engine_, {request})[0][0]; }
  std::string Refusal(const Request& request) {
    const Result<RequestId> id = engine_->Submit(request);
    EXPECT_FALSE(id.ok());
    return id.ok() ? "accepted"
                   : std::string(CodeName(id.status().code())) + " " + id.status().message();
  }

  FakeClock clock_;
  TestSetup setup_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, GivesTheArgMaxOfTheModelTokenByToken) {
  const Output output = RunOne(SimpleRequest({1, 2, 3}, 20));
  const FormulaPass model(setup_.target, 1);
  std::vector<int32_t> context = {1, 2, 3};
  for (const int32_t token : output.tokens) {
    const std::vector<float> logits = model.Logits(context);
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    context.push_back(token);
  }
  EXPECT_EQ(output.tokens.size(), 20u);
  EXPECT_EQ(output.finish, FinishReason::kLength);
  EXPECT_EQ(output.usage.prompt_tokens, 3);
  EXPECT_EQ(output.usage.output_tokens, 20);
  EXPECT_EQ(output.usage.seed, 11u);
}

TEST_F(EngineTest, UsageHasTheBlocksOfARequest) {
  const Output first = RunOne(SimpleRequest(CountingPrompt(20, 1), 12));
  EXPECT_EQ(first.usage.kv_blocks_new, 4) << "32 tokens in blocks of 8";
  EXPECT_EQ(first.usage.kv_blocks_reused, 0);
  Request longer = SimpleRequest(CountingPrompt(20, 1), 20);
  longer.num_choices = 2;
  const std::vector<Output> choices = RunRequests(*engine_, {longer})[0];
  for (const Output& again : choices) {
    EXPECT_EQ(again.usage.kv_blocks_reused, 2) << "the whole blocks of the prompt";
    EXPECT_EQ(again.usage.kv_blocks_new, 3);
    EXPECT_EQ(again.usage.kv_blocks_total(), 5);
  }
}

TEST_F(EngineTest, UsageCountsTheBlocksOfEveryStartOfAPausedChoice) {
  setup_.num_blocks = 12;
  setup_.options.max_seq_len = 64;
  Make();
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) requests.push_back(SimpleRequest(CountingPrompt(8, i), 40));
  int32_t most = 0;
  for (const auto& choices : RunRequests(*engine_, requests)) {
    EXPECT_GE(choices[0].usage.kv_blocks_total(), 6);
    most = std::max(most, choices[0].usage.kv_blocks_total());
  }
  EXPECT_GT(engine_->Stats().preemptions, 0);
  EXPECT_GT(most, 6);
}

TEST_F(EngineTest, UsageHasTheMomentsOfARequest) {
  setup_.options.max_batch_size = 1;
  Make();
  using std::chrono::seconds;
  clock_.Advance(seconds(100));
  ASSERT_TRUE(engine_->Submit(SimpleRequest({1, 2}, 1)).ok());
  const RequestId id = *engine_->Submit(SimpleRequest({3, 4}, 3));
  const Nanos arrival = clock_.Now();
  Outputs outputs;
  while ((outputs[{id, 0}].finish) == FinishReason::kNone) {
    clock_.Advance(seconds(2));
    engine_->Step();
    ReadEvents(*engine_, outputs);
  }
  const Usage usage = outputs[{id, 0}].usage;
  EXPECT_EQ(usage.arrival, arrival);
  EXPECT_EQ(usage.queued, seconds(4)) << "the first request had the slot";
  EXPECT_EQ(usage.first_token, seconds(4));
  EXPECT_EQ(usage.last_token, seconds(8));
}

TEST_F(EngineTest, StatsHaveTheWorkOfTheNewestStep) {
  setup_.options.max_num_tokens = 16;
  setup_.options.draft_mode = DraftMode::kOff;
  Make();
  const auto step = [&] {
    engine_->Step();
    return engine_->Stats().step;
  };
  ASSERT_TRUE(engine_->Submit(SimpleRequest(CountingPrompt(10, 1), 20)).ok());
  StepWork work = step();
  EXPECT_EQ(work.context_requests, 1);
  EXPECT_EQ(work.context_tokens, 10);
  EXPECT_EQ(work.generation_requests, 0);
  ASSERT_TRUE(engine_->Submit(SimpleRequest(CountingPrompt(20, 2), 20)).ok());
  work = step();
  EXPECT_EQ(work.context_requests, 1);
  EXPECT_EQ(work.context_tokens, 15) << "the rows that the first one leaves";
  EXPECT_EQ(work.generation_requests, 1);
  step();
  work = step();
  EXPECT_EQ(work.context_requests, 0);
  EXPECT_EQ(work.context_tokens, 0);
  EXPECT_EQ(work.generation_requests, 2);
  Outputs outputs;
  RunToEnd(*engine_, outputs, 2);
  work = step();
  EXPECT_EQ(work.generation_requests, 0) << "there is nothing to do";
}

TEST_F(EngineTest, StatsCountTheChoicesThatWaitToStartAgain) {
  setup_.num_blocks = 12;
  setup_.options.max_seq_len = 64;
  Make();
  for (int32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine_->Submit(SimpleRequest(CountingPrompt(8, i), 40)).ok());
  }
  while (engine_->Stats().paused == 0) ASSERT_TRUE(engine_->Step());
  EXPECT_LE(engine_->Stats().paused, engine_->Stats().waiting);
  Outputs outputs;
  RunToEnd(*engine_, outputs, 4);
  EXPECT_EQ(engine_->Stats().paused, 0);
}

// The raw logits after each token of the prompt, and those that each token was drawn from.
void ExpectLogits(const FormulaModel& target, const Request& request, const Output& output,
                  bool has_context) {
  const FormulaPass model(target, 1);
  std::vector<int32_t> context;
  std::vector<LogitsRow> rows;
  for (const int32_t token : request.prompt) {
    context.push_back(token);
    rows.push_back(model.Logits(context));
  }
  EXPECT_EQ(output.context_logits.size(), has_context ? rows.size() : 0);
  EXPECT_TRUE(!has_context || output.context_logits == rows);
  rows.erase(rows.begin(), rows.end() - 1);
  for (const int32_t token : output.tokens) {
    context.push_back(token);
    rows.push_back(model.Logits(context));
  }
  rows.resize(output.tokens.size());
  if (!request.return_generation_logits) rows.clear();
  EXPECT_EQ(output.generation_logits.size(), rows.size());
  EXPECT_TRUE(output.generation_logits == rows);
}

void ExpectPromptLogprobs(const FormulaModel& target, const Request& request,
                          const Output& output) {
  ASSERT_EQ(output.prompt_logprobs.size(), request.prompt.size());
  const FormulaPass model(target, 1);
  std::vector<int32_t> context;
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const SampledToken& scored = output.prompt_logprobs[i];
    EXPECT_EQ(scored.token, request.prompt[i]);
    EXPECT_EQ(std::isnan(scored.logprob), i == 0);
    EXPECT_EQ(scored.num_top, i == 0 ? 0 : request.num_prompt_logprobs);
    if (i > 0) {
      const LogitsRow logits = model.Logits(context);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      const auto logprob = [&](int32_t token) {
        return double{logits[static_cast<size_t>(token)]} - std::log(sum);
      };
      EXPECT_NEAR(scored.logprob, logprob(scored.token), 1e-4);
      for (int32_t top = 0; top < scored.num_top; ++top) {
        EXPECT_NEAR(scored.top_logprobs[top], logprob(scored.top_ids[top]), 1e-4);
        EXPECT_TRUE(top == 0 || scored.top_logprobs[top] <= scored.top_logprobs[top - 1]);
        // Clients find out by equality whether the prompt's token is the likeliest.
        EXPECT_TRUE(scored.top_ids[top] != scored.token ||
                    scored.top_logprobs[top] == scored.logprob);
      }
      if (scored.num_top > 0) {
        EXPECT_EQ(logits[static_cast<size_t>(scored.top_ids[0])], std::ranges::max(logits));
      }
    }
    context.push_back(request.prompt[i]);
  }
}

struct LogitsCase {
  std::string name;
  std::function<void(TestSetup&)> change;
};

class ReturnedLogitsTest : public testing::TestWithParam<std::tuple<LogitsCase, int32_t>> {
 protected:
  void SetUp() override {
    setup_.options = SmallOptions();
    setup_.options.steps_in_flight = std::get<1>(GetParam());
    std::get<0>(GetParam()).change(setup_);
  }
  static std::vector<Request> Requests() {
    std::vector<Request> requests;
    for (int32_t i = 0; i < 10; ++i) {
      Request request = SimpleRequest(CountingPrompt(1 + 11 * (i % 7), i % 3), 12 + i);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      if (i % 3 == 1) request.sampling.repetition_penalty = 1.3f;
      if (i % 4 == 1) request.logit_bias = {{5, -100.0f}};
      if (i == 6) request.end_ids = {3, 9, 30};
      if (i == 5) request.num_choices = 3;
      request.return_context_logits = i % 3 != 2;
      request.return_generation_logits = i % 4 != 3;
      if (i % 2 == 1) request.num_prompt_logprobs = i % 5;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  FakeClock clock_;
  TestSetup setup_;
};

TEST_P(ReturnedLogitsTest, AreTheTargetsRawLogits) {
  const auto engine = MakeTestEngine(setup_, clock_);
  std::vector<Request> requests = Requests();
  for (int round = 0; round < 2; ++round) {  // the second finds the prompts in the cache
    const auto outputs = RunRequests(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (size_t c = 0; c < outputs[i].size(); ++c) {
        SCOPED_TRACE(testing::Message() << "request " << i << " choice " << c);
        const bool has_context = requests[i].return_context_logits && c == 0;
        ExpectLogits(setup_.target, requests[i], outputs[i][c], has_context);
        const bool is_scored = requests[i].num_prompt_logprobs >= 0 && c == 0;
        if (is_scored) ExpectPromptLogprobs(setup_.target, requests[i], outputs[i][c]);
        EXPECT_TRUE(is_scored || outputs[i][c].prompt_logprobs.empty());
        if (has_context || is_scored) {
          EXPECT_EQ(outputs[i][c].usage.cached_tokens, 0);
        }
      }
    }
  }
  const bool drafts = setup_.options.draft_mode != DraftMode::kOff;
  EXPECT_EQ(engine->Stats().drafts_accepted > 0, drafts);
  if (setup_.num_blocks < 512) {
    EXPECT_GT(engine->Stats().preemptions, 0);
  }
}

TEST_P(ReturnedLogitsTest, ChangeNoToken) {
  if (setup_.options.ratio_acceptance) GTEST_SKIP() << "its tokens depend on the rounds";
  const auto engine = MakeTestEngine(setup_, clock_);
  const auto plain = MakeTestEngine(setup_, clock_);
  std::vector<Request> requests = Requests();
  const auto with = RunRequests(*engine, requests);
  for (Request& request : requests) {
    request.return_context_logits = request.return_generation_logits = false;
    request.num_prompt_logprobs = -1;
  }
  const auto without = RunRequests(*plain, requests);
  for (size_t i = 0; i < with.size(); ++i) {
    for (size_t c = 0; c < with[i].size(); ++c) EXPECT_EQ(with[i][c].tokens, without[i][c].tokens);
  }
}

TEST_P(ReturnedLogitsTest, ACancelledRequestHasARowForEachOfItsTokens) {
  const auto engine = MakeTestEngine(setup_, clock_);
  Request request = SimpleRequest(CountingPrompt(30, 1), 100);
  request.return_context_logits = request.return_generation_logits = true;
  request.num_prompt_logprobs = 2;
  for (const int steps : {1, 6, 20}) {
    const RequestId id = *engine->Submit(request);
    for (int i = 0; i < steps; ++i) engine->Step();
    engine->Cancel(id);
    Outputs outputs;
    RunToEnd(*engine, outputs, 1);
    while (engine->Step()) {
    }
    const Output& output = outputs[{id, 0}];
    EXPECT_EQ(output.finish, FinishReason::kCancelled);
    ExpectLogits(setup_.target, request, output, !output.tokens.empty());
    EXPECT_EQ(output.prompt_logprobs.size(), output.tokens.empty() ? 0 : request.prompt.size());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, ReturnedLogitsTest,
    testing::Combine(
        testing::Values(
            LogitsCase{"plain", [](TestSetup&) {}},
            LogitsCase{"drafts", [](TestSetup& s) { s.options.draft_mode = DraftMode::kFixed; }},
            LogitsCase{"ratio",
                       [](TestSetup& s) {
                         s.options.draft_mode = DraftMode::kFixed;
                         s.options.ratio_acceptance = true;
                       }},
            LogitsCase{"small_chunks", [](TestSetup& s) { s.options.max_num_tokens = 9; }},
            LogitsCase{"whole_prompts",
                       [](TestSetup& s) {
                         s.options.max_num_tokens = 80;
                         s.options.enable_chunked_prefill = false;
                       }},
            LogitsCase{"preemption", [](TestSetup& s) { s.num_blocks = 32; }}),
        testing::Values(0, 1)),
    [](const testing::TestParamInfo<std::tuple<LogitsCase, int32_t>>& info) {
      return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
    });

TEST_F(EngineTest, LogprobsOfAPromptTakeNoRoomForItsLogits) {
  setup_.options.max_logits_bytes = 40 * sizeof(SampledToken);
  Make();
  Request request = SimpleRequest(CountingPrompt(40, 1), 3);
  request.num_prompt_logprobs = 5;
  EXPECT_EQ(RunOne(request).prompt_logprobs.size(), 40u);
  request.prompt = CountingPrompt(41, 1);
  EXPECT_THAT(Refusal(request), HasSubstr("prompt_logprobs: "));
  request.prompt = CountingPrompt(40, 1);
  request.num_prompt_logprobs = 21;
  EXPECT_THAT(Refusal(request), HasSubstr("prompt_logprobs"));
}

TEST_F(EngineTest, RefusesLogitsBeyondTheBoundWithTheirBytes) {
  setup_.options.max_logits_bytes = 100 * 48 * 4;
  Make();
  Request request = SimpleRequest(CountingPrompt(40, 1), 61);
  request.return_context_logits = request.return_generation_logits = true;
  EXPECT_THAT(Refusal(request), HasSubstr("return_context_logits: the logits of this request may "
                                          "take 19392 bytes, 192 for each token; this server "
                                          "allows 19200 (max_logits_bytes)"));
  request.return_context_logits = false;
  EXPECT_EQ(RunOne(request).generation_logits.size(), 61u);
  request.draft.tokens.assign(30, 1);
  EXPECT_EQ(RunOne(request).generation_logits.size(), 61u);
  request.draft.tokens.resize(32);
  request.draft.logits.resize(32 * 48);
  request.max_tokens = 70;
  EXPECT_THAT(Refusal(request), HasSubstr("may take 19584 bytes"));
  request.return_generation_logits = false;
  EXPECT_EQ(RunOne(request).tokens.size(), 70u);
  request.return_generation_logits = true;
  request.draft = {};
  request.max_tokens = 61;
  request.num_choices = 2;
  EXPECT_THAT(Refusal(request), HasSubstr("INVALID_ARGUMENT return_generation_logits"));
  EXPECT_EQ(engine_->Submit(request).status().field(), "return_generation_logits");
  setup_.options.max_logits_bytes = 0;
  Make();
  request.num_choices = 1;
  EXPECT_THAT(Refusal(request), HasSubstr("this server neither returns nor takes logits"));
}

TEST_F(EngineTest, LogitsThatWaitToBeReadKeepOthersOut) {
  setup_.options.max_logits_bytes = 10 * 48 * 4;
  Make();
  Request request = SimpleRequest({1, 2, 3}, 10);
  request.return_generation_logits = true;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine_->Submit(request).ok());
  for (int i = 0; i < 30; ++i) engine_->Step();
  EXPECT_THAT(Refusal(request), HasSubstr("RESOURCE_EXHAUSTED The logits of this request"));
  EXPECT_TRUE(engine_->Submit(SimpleRequest({1, 2}, 4)).ok()) << "it wants none";
  Outputs outputs;
  RunToEnd(*engine_, outputs, 5);
  EXPECT_EQ(RunOne(request).generation_logits.size(), 10u);
}

TEST_F(EngineTest, CountsDecodeStepsOnlyAfterAStepWithoutAPrompt) {
  setup_.options.draft_mode = DraftMode::kOff;
  Make();
  RunOne(SimpleRequest({1, 2, 3}, 20));
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.steps, 20);
  EXPECT_EQ(stats.decode_host.count(), 18);
}

TEST_F(EngineTest, EndIdsEndTheOutputAndAreNoPartOfIt) {
  const Output free = RunOne(SimpleRequest({1, 2, 3}, 20));
  Request request = SimpleRequest({1, 2, 3}, 20);
  request.end_ids = {free.tokens[7]};
  const Output ended = RunOne(request);
  EXPECT_EQ(ended.finish, FinishReason::kEnd);
  EXPECT_EQ(ended.end.token, free.tokens[7]);
  const auto first = std::find(free.tokens.begin(), free.tokens.end(), free.tokens[7]);
  EXPECT_EQ(ended.tokens, std::vector<int32_t>(free.tokens.begin(), first));
  request.ignore_eos = true;
  EXPECT_EQ(RunOne(request).tokens, free.tokens);
}

TEST_F(EngineTest, StopSequencesEndTheOutputAndArePartOfIt) {
  const Output free = RunOne(SimpleRequest({1, 2, 3}, 20));
  Request request = SimpleRequest({1, 2, 3}, 20);
  request.stop_sequences = {{47, 47, 47}, {free.tokens[8], free.tokens[9]}};
  const Output stopped = RunOne(request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(free.tokens.begin(), free.tokens.begin() + 10));
}

TEST_F(EngineTest, ChoicesDifferShareTheirPromptAndRepeatWithTheSeed) {
  Request request = SimpleRequest(CountingPrompt(40, 1), 12);
  request.sampling.temperature = 1.0f;
  request.num_choices = 4;
  const auto choices = RunRequests(*engine_, {request})[0];
  EXPECT_NE(choices[0].tokens, choices[1].tokens);
  for (size_t c = 1; c < choices.size(); ++c) {
    EXPECT_GE(choices[c].usage.cached_tokens, 32) << "four full blocks of the first choice";
  }
  const auto again = RunRequests(*engine_, {request})[0];
  for (size_t c = 0; c < choices.size(); ++c) EXPECT_EQ(choices[c].tokens, again[c].tokens);
}

TEST_F(EngineTest, ARandomSeedIsReportedAndReproducesTheText) {
  Request request = SimpleRequest({1, 2, 3}, 20);
  request.sampling.temperature = 1.0f;
  request.seed.reset();
  const Output first = RunOne(request);
  const Output second = RunOne(request);
  EXPECT_NE(first.usage.seed, second.usage.seed);
  EXPECT_LT(std::max(first.usage.seed, second.usage.seed), uint64_t{1} << 53);
  request.seed = first.usage.seed;
  EXPECT_EQ(RunOne(request).tokens, first.tokens);
}

TEST_F(EngineTest, RefusesWhatCanNeverRunWithFieldValueAndLimit) {
  const auto with = [](auto change) {
    Request request = SimpleRequest({1, 2, 3}, 5);
    change(request);
    return request;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Refusal(with([](Request& r) { r.prompt.clear(); })),
              HasSubstr("INVALID_ARGUMENT prompt is empty"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.prompt = {48}; })),
              HasSubstr("prompt holds token 48; the vocabulary goes from 0 to 47"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.max_tokens = -1; })),
              HasSubstr("max_tokens must be at least 1; it is -1"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.max_tokens = 300; })),
              HasSubstr("together 303; max_seq_len of this server is 256"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.prompt.assign(300, 1); })),
              HasSubstr("prompt has 300 tokens"));
  EXPECT_THAT(Refusal(with([&](Request& r) { r.sampling.temperature = nan; })),
              HasSubstr("temperature must be a number from 0 to 100; it is nan"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.sampling.temperature = -1.0f; })),
              HasSubstr("it is -1"));
  EXPECT_THAT(Refusal(with([&](Request& r) { r.sampling.top_p = nan; })), HasSubstr("top_p"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.sampling.top_p = 1.5f; })), HasSubstr("1.5"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.sampling.top_k = -2; })), HasSubstr("top_k"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.sampling.min_p = 2.0f; })), HasSubstr("min_p"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.sampling.repetition_penalty = 0.0f; })),
              HasSubstr("repetition_penalty must be a number from 0.01 to 100; it is 0"));
  EXPECT_THAT(Refusal(with([&](Request& r) { r.sampling.presence_penalty = nan; })),
              HasSubstr("presence_penalty"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.sampling.min_tokens = 6; })),
              HasSubstr("min_tokens must be between 0 and 5; it is 6"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.sampling.num_top_logprobs = 21; })),
              HasSubstr("top_logprobs must be between -1 and 20; it is 21"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.num_choices = 9; })),
              HasSubstr("n must be between 1 and 8; it is 9"));
  EXPECT_THAT(Refusal(with([&](Request& r) { r.priority = double{nan}; })), HasSubstr("priority"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.logit_bias = {{99, 1.0f}}; })),
              HasSubstr("logit_bias holds token 99"));
  EXPECT_THAT(Refusal(with([&](Request& r) { r.logit_bias = {{1, nan}}; })), HasSubstr("nan"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.stop_sequences = {{}}; })),
              HasSubstr("stop holds a sequence of 0 tokens"));
  EXPECT_THAT(Refusal(with([](Request& r) { r.banned_sequences = {{-1}}; })),
              HasSubstr("bad_words holds token -1"));
  // The engine still works.
  EXPECT_EQ(RunOne(SimpleRequest({1, 2, 3}, 5)).tokens.size(), 5u);
}

TEST_F(EngineTest, RefusalsTellProgramsTheFieldAndTheReason) {
  Request hot = SimpleRequest({1, 2, 3}, 5);
  hot.sampling.temperature = -1.0f;
  const Status range = engine_->Submit(hot).status();
  EXPECT_EQ(range.field(), "temperature");
  EXPECT_EQ(range.reason(), Reason::kNone);
  const Status context = engine_->Submit(SimpleRequest({1, 2, 3}, 300)).status();
  EXPECT_EQ(context.field(), "max_tokens");
  EXPECT_EQ(context.reason(), Reason::kContextLength);
  setup_.options.max_queue_size = 1;
  Make();
  ASSERT_TRUE(engine_->Submit(SimpleRequest({1}, 4)).ok());
  const Status full = engine_->Submit(SimpleRequest({1}, 4)).status();
  EXPECT_EQ(full.reason(), Reason::kQueueFull);
  EXPECT_EQ(full.field(), "");
}

TEST_F(EngineTest, PromptsAreBoundByThemselvesWhereTheOptionsSaySo) {
  EXPECT_EQ(engine_->limits().max_input_len, engine_->limits().max_seq_len);
  setup_.options.max_input_len = 10;
  Make();
  EXPECT_EQ(engine_->limits().max_input_len, 10);
  EXPECT_EQ(RunOne(SimpleRequest(CountingPrompt(10, 1), 20)).tokens.size(), 20u);
  EXPECT_THAT(Refusal(SimpleRequest(CountingPrompt(11, 1), 20)),
              HasSubstr("INVALID_ARGUMENT prompt has 11 tokens; this server takes at most 10"));
}

TEST_F(EngineTest, AFullQueueRefusesAndTakesAgainLater) {
  setup_.options.max_queue_size = 3;
  setup_.options.max_batch_size = 2;
  Make();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine_->Submit(SimpleRequest({1}, 4)).ok());
  EXPECT_THAT(Refusal(SimpleRequest({1}, 4)),
              HasSubstr("RESOURCE_EXHAUSTED Maximum queue size of 3 has been reached, please try "
                        "again later"));
  engine_->Step();
  EXPECT_TRUE(engine_->Submit(SimpleRequest({1}, 4)).ok());
  Outputs outputs;
  RunToEnd(*engine_, outputs, 4);
}

TEST_F(EngineTest, ACancelledRequestIsGoneWhenTheStepsThatNameItHaveLanded) {
  for (const int32_t in_flight : {0, 1, 2, 3}) {
    setup_.options.steps_in_flight = in_flight;
    Make();
    const RequestId id = *engine_->Submit(SimpleRequest(CountingPrompt(50, 1), 100));
    for (int i = 0; i < 5; ++i) engine_->Step();
    EXPECT_GT(engine_->Stats().kv.referenced_blocks, 0);
    engine_->Cancel(id);
    for (int32_t step = 0; step < std::max(in_flight, 1); ++step) engine_->Step();
    EXPECT_EQ(engine_->Stats().kv.referenced_blocks, 0);
    EXPECT_EQ(engine_->Stats().running, 0);
    Outputs outputs;
    ReadEvents(*engine_, outputs);
    EXPECT_EQ((outputs[{id, 0}].finish), FinishReason::kCancelled);
    engine_->Cancel(id);  // finished: ignored
    engine_->Cancel(12345);
    EXPECT_FALSE(engine_->Step());
  }
}

TEST_F(EngineTest, OneChoiceCanBeCancelledAndTheOthersGoOn) {
  Request request = SimpleRequest(CountingPrompt(20, 1), 40);
  request.sampling.temperature = 1.0f;
  request.num_choices = 3;
  for (const int32_t in_flight : {0, 1, 2, 3}) {
    setup_.options.steps_in_flight = in_flight;
    Make();
    const std::unique_ptr<Engine> twin = std::move(engine_);
    Make();
    ASSERT_TRUE(twin->Submit(request).ok());
    const RequestId id = *engine_->Submit(request);
    for (int32_t i = 0; i < 7 + in_flight; ++i) twin->Step();
    for (int i = 0; i < 6; ++i) engine_->Step();
    ASSERT_EQ(engine_->Stats().running, 3);
    engine_->Cancel(id, 1);
    engine_->Cancel(id, 7);  // unknown: ignored
    for (int32_t step = 0; step < in_flight + 1; ++step) engine_->Step();
    EXPECT_EQ(engine_->Stats().running, 2) << "its slot is free";
    EXPECT_LT(engine_->Stats().kv.referenced_blocks, twin->Stats().kv.referenced_blocks);
    Outputs outputs, whole;
    RunToEnd(*engine_, outputs, 3);
    RunToEnd(*twin, whole, 3);
    EXPECT_EQ((outputs[{id, 1}].finish), FinishReason::kCancelled);
    EXPECT_LT((outputs[{id, 1}].tokens.size()), 40u);
    EXPECT_EQ((outputs[{id, 0}].tokens), (whole[{id, 0}].tokens));
    EXPECT_EQ((outputs[{id, 2}].tokens), (whole[{id, 2}].tokens));
    EXPECT_EQ(engine_->Stats().kv.referenced_blocks, 0);
    engine_->CheckIntegrity();
  }
}

TEST_F(EngineTest, AWaitingRequestCanBeCancelled) {
  setup_.options.max_batch_size = 1;
  Make();
  ASSERT_TRUE(engine_->Submit(SimpleRequest({1}, 10)).ok());
  const RequestId waiting = *engine_->Submit(SimpleRequest({2}, 10));
  engine_->Step();
  engine_->Cancel(waiting);
  engine_->Step();
  Outputs outputs;
  ReadEvents(*engine_, outputs);
  EXPECT_EQ((outputs[{waiting, 0}].finish), FinishReason::kCancelled);
  EXPECT_EQ((outputs[{waiting, 0}].usage.output_tokens), 0);
  RunToEnd(*engine_, outputs, 2);
}

TEST_F(EngineTest, ADeadlineEndsARequestWhetherItRunsOrWaits) {
  setup_.options.max_batch_size = 1;
  Make();
  Request request = SimpleRequest({1, 2}, 100);
  request.deadline = clock_.Now() + std::chrono::seconds(5);
  const RequestId running = *engine_->Submit(request);
  const RequestId waiting = *engine_->Submit(request);
  for (int i = 0; i < 3; ++i) engine_->Step();
  clock_.Advance(std::chrono::seconds(6));
  Outputs outputs;
  RunToEnd(*engine_, outputs, 2);
  EXPECT_EQ((outputs[{running, 0}].finish), FinishReason::kTimedOut);
  EXPECT_EQ((outputs[{running, 0}].tokens.size()), 3u);
  EXPECT_EQ((outputs[{waiting, 0}].finish), FinishReason::kTimedOut);
}

TEST_F(EngineTest, EachRequestEndsAtItsOwnDeadline) {
  Make();
  std::vector<RequestId> ids;
  for (const int seconds : {20, 10, 30}) {
    Request request = SimpleRequest({1, 2}, 100);
    request.deadline = clock_.Now() + std::chrono::seconds(seconds);
    ids.push_back(*engine_->Submit(request));
  }
  const RequestId cancelled = *engine_->Submit(SimpleRequest({1, 2}, 100));
  engine_->Step();
  engine_->Cancel(cancelled);
  Outputs outputs;
  for (const size_t due : {1, 0, 2}) {
    engine_->Step();
    ReadEvents(*engine_, outputs);
    EXPECT_EQ((outputs[{ids[due], 0}].finish), FinishReason::kNone);
    clock_.Advance(std::chrono::seconds(10));
    engine_->Step();
    ReadEvents(*engine_, outputs);
    EXPECT_EQ((outputs[{ids[due], 0}].finish), FinishReason::kTimedOut);
  }
  EXPECT_EQ((outputs[{cancelled, 0}].finish), FinishReason::kCancelled);
}

TEST_F(EngineTest, ARequestThatWaitsLongerThanItMayIsRefusedAfterAll) {
  setup_.options.max_batch_size = 2;
  setup_.options.max_queue_wait = std::chrono::seconds(60);
  Make();
  const RequestId running = *engine_->Submit(SimpleRequest({1, 2}, 100));
  Request two_choices = SimpleRequest({3, 4}, 100);
  two_choices.num_choices = 2;
  const RequestId half_started = *engine_->Submit(two_choices);
  const RequestId waiting = *engine_->Submit(two_choices);
  Outputs outputs;
  engine_->Step();
  clock_.Advance(std::chrono::seconds(60) - Nanos(1));
  engine_->Step();
  ReadEvents(*engine_, outputs);
  for (int choice = 0; choice < 2; ++choice) {
    EXPECT_EQ((outputs[{waiting, choice}].finish), FinishReason::kNone);
  }
  clock_.Advance(Nanos(1));
  const RequestId later = *engine_->Submit(SimpleRequest({5}, 4));
  RunToEnd(*engine_, outputs, 6);
  for (int choice = 0; choice < 2; ++choice) {
    const Output& refused = outputs[{waiting, choice}];
    EXPECT_EQ(refused.finish, FinishReason::kFailed);
    EXPECT_EQ(refused.error.code(), Code::kResourceExhausted);
    EXPECT_THAT(refused.error.message(), HasSubstr("Maximum queue wait of 60 s has passed"));
    EXPECT_EQ(refused.error.reason(), Reason::kQueueWait);
    EXPECT_TRUE(refused.tokens.empty());
    // A request that has begun continues, as does a choice of it that still waits.
    EXPECT_EQ((outputs[{half_started, choice}].tokens.size()), 100u);
  }
  EXPECT_EQ((outputs[{running, 0}].tokens.size()), 100u);
  EXPECT_EQ((outputs[{later, 0}].tokens.size()), 4u);
  EXPECT_EQ(engine_->Stats().requests_failed, 1);
  EXPECT_EQ(engine_->Stats().waiting, 0);
}

TEST_F(EngineTest, HigherPriorityStartsFirst) {
  setup_.options.max_batch_size = 1;
  Make();
  std::vector<RequestId> ids;
  for (const double priority : {0.5, 0.1, 0.9, 0.5}) {
    Request request = SimpleRequest({1, 2}, 3);
    request.priority = priority;
    ids.push_back(*engine_->Submit(request));
  }
  std::vector<RequestId> ended;
  Event event;
  while (ended.size() < 4) {
    engine_->Step();
    while (engine_->PopEvent(event, Nanos(0))) {
      if (event.finish != FinishReason::kNone) ended.push_back(event.request);
    }
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{ids[2], ids[0], ids[3], ids[1]}));
}

// Allows nothing once `length` tokens were committed, which may be a whole output.
class DeadEnd final : public TokenConstraint {
 public:
  explicit DeadEnd(int32_t length, bool is_whole = false) : left_(length), is_whole_(is_whole) {}
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    if (static_cast<int32_t>(ahead.size()) >= left_) allowed[0] = allowed[1] = 0;
  }
  void Commit(const int32_t* /*tokens*/, int32_t num_tokens) override { left_ -= num_tokens; }
  Status AtDeadEnd() override {
    EXPECT_EQ(left_, 0);
    return is_whole_ ? Status() : TokenConstraint::AtDeadEnd();
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<DeadEnd>(*this);
  }

 private:
  int32_t left_;
  bool is_whole_;
};

TEST_F(EngineTest, ARequestFailsAlone) {
  for (const DraftMode mode : {DraftMode::kOff, DraftMode::kFixed}) {
    setup_.options.draft_mode = mode;
    Make();
    Request failing = SimpleRequest({1, 2}, 20);
    failing.constraint = std::make_shared<DeadEnd>(6);
    const auto outputs = RunRequests(*engine_, {SimpleRequest({1, 2}, 20), failing});
    EXPECT_EQ(outputs[0][0].finish, FinishReason::kLength);
    EXPECT_EQ(outputs[1][0].finish, FinishReason::kFailed);
    EXPECT_EQ(outputs[1][0].tokens.size(), 6u);
    EXPECT_THAT(outputs[1][0].error.message(), HasSubstr("allows no token"));
    EXPECT_EQ(engine_->Stats().requests_failed, 1);
  }
}

TEST_F(EngineTest, AWholeOutputStopsWhereNoTokenMayFollow) {
  for (const DraftMode mode : {DraftMode::kOff, DraftMode::kFixed}) {
    setup_.options.draft_mode = mode;
    Make();
    Request whole = SimpleRequest({1, 2}, 20);
    whole.constraint = std::make_shared<DeadEnd>(6, /*is_whole=*/true);
    whole.num_choices = 3;
    const auto outputs = RunRequests(*engine_, {SimpleRequest({1, 2}, 20), whole});
    EXPECT_EQ(outputs[0][0].finish, FinishReason::kLength);
    for (const auto& output : outputs[1]) {
      EXPECT_EQ(output.finish, FinishReason::kStop);
      EXPECT_EQ(output.tokens.size(), 6u);
      EXPECT_TRUE(output.error.ok());
    }
    EXPECT_EQ(engine_->Stats().requests_failed, 0);
  }
}

TEST_F(EngineTest, DrainLetsRequestsEndAndRefusesNewOnes) {
  engine_->Start();
  ASSERT_TRUE(engine_->Submit(SimpleRequest({1, 2}, 50)).ok());
  EXPECT_TRUE(engine_->Drain(std::chrono::seconds(20)));
  EXPECT_THAT(Refusal(SimpleRequest({1}, 4)), HasSubstr("UNAVAILABLE"));
  Event event;
  size_t tokens = 0;
  while (engine_->PopEvent(event, Nanos(0))) tokens += event.tokens.size();
  EXPECT_EQ(tokens, 50u);
}

TEST_F(EngineTest, StopAnswersEveryOpenRequest) {
  engine_->Start();
  std::vector<RequestId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(*engine_->Submit(SimpleRequest({1, 2}, 200)));
  engine_->Stop();
  Outputs outputs;
  ReadEvents(*engine_, outputs);
  for (const RequestId id : ids) EXPECT_NE((outputs[{id, 0}].finish), FinishReason::kNone);
}

TEST_F(EngineTest, ServesManyThreadsAtOnce) {
  setup_.options.steps_in_flight = 1;
  setup_.options.draft_mode = DraftMode::kFixed;
  Make();
  const std::vector<int32_t> expected = RunOne(SimpleRequest({1, 2, 3}, 30)).tokens;
  engine_->Start();
  constexpr int kThreads = 4, kRequests = 25;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const RequestId id = *engine_->Submit(SimpleRequest({1, 2, 3}, 30));
        if ((i + t) % 5 == 0) engine_->Cancel(id);
      }
    });
  }
  Outputs outputs;
  size_t ended = 0;
  Event event;
  while (ended < kThreads * kRequests) {
    ASSERT_TRUE(engine_->PopEvent(event, std::chrono::seconds(30)));
    Output& output = outputs[{event.request, 0}];
    for (const SampledToken& token : event.tokens) output.tokens.push_back(token.token);
    output.finish = event.finish;
    ended += event.finish != FinishReason::kNone;
  }
  for (std::thread& client : clients) client.join();
  for (const auto& [key, output] : outputs) {
    if (output.finish == FinishReason::kLength) {
      EXPECT_EQ(output.tokens, expected);
    }
  }
  engine_->Stop();
  engine_->CheckIntegrity();
  EXPECT_EQ(engine_->Stats().kv.referenced_blocks, 0);
}

TEST_F(EngineTest, TheHeartbeatFollowsTheLoop) {
  engine_->Step();
  clock_.Advance(std::chrono::seconds(3));
  EXPECT_DOUBLE_EQ(engine_->Stats().seconds_since_progress, 3.0);
  engine_->Step();
  EXPECT_DOUBLE_EQ(engine_->Stats().seconds_since_progress, 0.0);
}

}  // namespace
}  // namespace tandem
