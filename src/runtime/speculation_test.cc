// Speculation changes speed, never tokens: every option, alone and with other sequences, with a
// fixed draft length and with the chooser, compared with the target alone.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>

#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

// Allows tokens that are not congruent to the previous one modulo 3; the end id 0 always.
class EveryThird final : public TokenConstraint {
 public:
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    const int32_t last = ahead.empty() ? last_ : ahead.back();
    for (int32_t token = 1; token < 48; ++token) {
      if (token % 3 == last % 3) allowed[token / 32] &= ~(1u << (token % 32));
    }
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    for (int32_t i = 0; i < num_tokens; ++i) {
      EXPECT_NE(tokens[i] % 3, last_ % 3) << "a token the mask forbade";
      last_ = tokens[i];
    }
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<EveryThird>(*this);
  }

 private:
  int32_t last_ = 1;
};

struct Option {
  std::string name;
  std::function<void(Request&)> set;
};

const std::vector<Option>& Options() {
  static const std::vector<Option> options = {
      {"greedy", [](Request& r) { r.sampling.temperature = 0.0f; }},
      {"temperature", [](Request& r) { r.sampling.temperature = 0.7f; }},
      {"top_k", [](Request& r) { r.sampling.top_k = 5; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 0.8f; }},
      {"top_p_decay",
       [](Request& r) {
         r.sampling.top_p = 0.9f;
         r.sampling.top_p_decay = 0.9f;
         r.sampling.top_p_min = 0.2f;
         r.sampling.top_p_reset_id = 5;
       }},
      {"min_p", [](Request& r) { r.sampling.min_p = 0.1f; }},
      {"repetition", [](Request& r) { r.sampling.repetition_penalty = 1.3f; }},
      {"presence", [](Request& r) { r.sampling.presence_penalty = 0.8f; }},
      {"frequency",
       [](Request& r) {
         r.sampling.frequency_penalty = 0.5f;
         r.sampling.temperature = 0.0f;
       }},
      {"no_repeat_ngram", [](Request& r) { r.sampling.no_repeat_ngram_size = 2; }},
      {"logit_bias", [](Request& r) { r.logit_bias = {{3, 4.0f}, {7, -50.0f}, {9, 2.0f}}; }},
      {"bans", [](Request& r) { r.banned_sequences = {{4}, {5, 6}, {9, 10, 11}}; }},
      {"min_tokens",
       [](Request& r) {
         r.end_ids = {0, 1, 2, 3, 8};
         r.sampling.min_tokens = 12;
       }},
      {"end_ids", [](Request& r) { r.end_ids = {0, 13}; }},
      {"ignore_eos",
       [](Request& r) {
         r.end_ids = {0, 1, 2, 3};
         r.ignore_eos = true;
       }},
      {"stop_sequences", [](Request& r) { r.stop_sequences = {{5}, {20, 21}, {40}}; }},
      {"logprobs", [](Request& r) { r.sampling.num_top_logprobs = 3; }},
      {"n", [](Request& r) { r.num_choices = 3; }},
      {"constraint",
       [](Request& r) {
         r.end_ids = {0};
         r.constraint = std::make_shared<EveryThird>();
       }},
  };
  return options;
}

std::vector<Request> MakeRequests(const Option& option, int32_t count) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < count; ++i) {
    // Lengths around block edges; every second prompt starts like the first one.
    Request request = SimpleRequest(CountingPrompt(5 + 7 * i, i % 2 == 0 ? 1 : 10 * i), 40);
    request.sampling.temperature = 1.0f;
    request.seed = 100 + static_cast<uint64_t>(i);
    option.set(request);
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectSame(const Output& expected, const Output& got, const std::string& where) {
  EXPECT_EQ(expected.tokens, got.tokens) << where;
  EXPECT_EQ(FinishReasonName(expected.finish), FinishReasonName(got.finish)) << where;
  EXPECT_EQ(expected.usage.output_tokens, got.usage.output_tokens) << where;
  ASSERT_EQ(expected.details.size(), got.details.size()) << where;
  for (size_t i = 0; i < expected.details.size(); ++i) {
    const SampledToken& a = expected.details[i];
    const SampledToken& b = got.details[i];
    ASSERT_EQ(a.num_top, b.num_top) << where;
    if (a.num_top == 0) continue;
    EXPECT_EQ(a.logprob, b.logprob) << where;
    for (int32_t t = 0; t < a.num_top; ++t) EXPECT_EQ(a.top_ids[t], b.top_ids[t]) << where;
  }
}

// One request at a time by the target alone: nothing shared, nothing in flight.
std::vector<std::vector<Output>> Alone(const std::vector<Request>& requests) {
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.enable_prefix_reuse = false;
  std::vector<std::vector<Output>> results;
  for (const Request& request : requests) {
    const auto engine = MakeTestEngine(setup, clock);
    results.push_back(RunRequests(*engine, {request}).front());
  }
  return results;
}

struct Company {
  std::string name;
  TestSetup setup;
  bool pauses = false;  // blocks run out for eight sequences of full length
};

std::vector<Company> Companies() {
  std::vector<Company> companies;
  const auto add = [&](const std::string& name, const std::function<void(TestSetup&)>& change) {
    for (const int32_t in_flight : {0, 1, 2, 3}) {
      Company company;
      company.name = name + " in_flight=" + std::to_string(in_flight);
      company.setup.options = SmallOptions();
      company.setup.options.steps_in_flight = in_flight;
      change(company.setup);
      company.pauses = name.ends_with("preemption");
      companies.push_back(std::move(company));
    }
  };
  add("plain", [](TestSetup&) {});
  add("fixed", [](TestSetup& s) { s.options.draft_mode = DraftMode::kFixed; });
  add("adaptive", [](TestSetup& s) { s.options.draft_mode = DraftMode::kAdaptive; });
  add("fixed, poor draft", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.draft.share = 0.3;
  });
  add("fixed, perfect draft", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.draft.share = 1.0;
  });
  add("fixed, preemption", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.num_blocks = 34;  // all eight together need about seventy
  });
  add("fixed, no reuse, small budget", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.options.enable_prefix_reuse = false;
    s.options.max_num_tokens = 16;
  });
  add("lookup and model", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.options.lookup_ngram = 1;
  });
  add("lookup alone", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.options.lookup_ngram = 1;
    s.draft_model = false;
  });
  add("short draft context", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.draft_max_positions = 30;
  });
  add("small draft vocabulary", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.draft.vocab = 40;
  });
  add("no evict", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.options.policy = SchedulerPolicy::kGuaranteedNoEvict;
    s.num_blocks = 34;
  });
  add("static batch", [](TestSetup& s) {
    s.options.draft_mode = DraftMode::kFixed;
    s.options.policy = SchedulerPolicy::kStaticBatch;
    s.options.max_batch_size = 4;
  });
  return companies;
}

class SpeculationTest : public testing::TestWithParam<size_t> {};

TEST_P(SpeculationTest, GivesTheTokensOfTheTargetAlone) {
  const Option& option = Options()[GetParam()];
  for (const int32_t count : {1, 8}) {
    const std::vector<Request> requests = MakeRequests(option, count);
    const auto expected = Alone(requests);
    for (const Company& company : Companies()) {
      const std::string where =
          option.name + ", " + company.name + ", batch " + std::to_string(count);
      FakeClock clock;
      const auto engine = MakeTestEngine(company.setup, clock);
      // Twice: in the second run every prompt is found in the prefix tree.
      for (int round = 0; round < 2; ++round) {
        const auto got = RunRequests(*engine, requests);
        for (size_t i = 0; i < requests.size(); ++i) {
          for (size_t c = 0; c < got[i].size(); ++c) {
            ExpectSame(expected[i][c], got[i][c],
                       where + ", round " + std::to_string(round) + ", request " +
                           std::to_string(i) + ", choice " + std::to_string(c));
          }
        }
      }
      const EngineStats stats = engine->Stats();
      const bool drafts = company.setup.options.draft_mode != DraftMode::kOff;
      // A look-up finds nothing where no n-gram may repeat.
      if (drafts && company.setup.draft_model) {
        EXPECT_GT(stats.drafts_proposed, 0) << where;
      }
      EXPECT_LE(stats.drafts_accepted, stats.drafts_proposed) << where;
      if (company.pauses && count == 8) {
        EXPECT_GT(stats.preemptions, 0) << where;
      }
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryOption, SpeculationTest, testing::Range<size_t>(0, Options().size()),
                         [](const testing::TestParamInfo<size_t>& info) {
                           return Options()[info.param].name;
                         });

TEST(Speculation, AgreesWhileNeighboursAreCancelled) {
  const Option sampled{"sampled", [](Request&) {}};
  const std::vector<Request> requests = MakeRequests(sampled, 4);
  const auto expected = Alone(requests);
  for (const int32_t in_flight : {0, 1, 2, 3}) {
    FakeClock clock;
    TestSetup setup;
    setup.options = SmallOptions();
    setup.options.draft_mode = DraftMode::kFixed;
    setup.options.steps_in_flight = in_flight;
    const auto engine = MakeTestEngine(setup, clock);
    std::vector<RequestId> kept, dropped;
    for (const Request& request : requests) {
      kept.push_back(*engine->Submit(request));
      dropped.push_back(*engine->Submit(SimpleRequest(CountingPrompt(20, 3), 60)));
    }
    Outputs outputs;
    for (const RequestId id : dropped) {
      engine->Step();
      engine->Cancel(id);
    }
    RunToEnd(*engine, outputs, 8);
    for (size_t i = 0; i < kept.size(); ++i) {
      ExpectSame(expected[i][0], outputs[{kept[i], 0}], "request " + std::to_string(i));
    }
    for (const RequestId id : dropped) {
      EXPECT_EQ((outputs[{id, 0}].finish), FinishReason::kCancelled);
    }
    engine->Step();
    engine->CheckIntegrity();
    EXPECT_EQ(engine->Stats().kv.referenced_blocks, 0);
  }
}

TEST(Speculation, APerfectDraftIsAlwaysAcceptedAndADraftNeverTakesTheLastToken) {
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.draft_mode = DraftMode::kFixed;
  setup.draft.share = 1.0;
  const auto engine = MakeTestEngine(setup, clock);
  const auto outputs = RunRequests(*engine, {SimpleRequest(CountingPrompt(10, 1), 41)});
  const Usage& usage = outputs[0][0].usage;
  EXPECT_EQ(usage.drafts_accepted, usage.drafts_proposed);
  // The first token comes with the prompt; then eight rounds of four drafts and the token after
  // them.
  EXPECT_EQ(usage.draft_rounds, 8);
  EXPECT_EQ(usage.drafts_proposed, 32);
}

TEST(Speculation, ARequestMayDeclineTheDraft) {
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.draft_mode = DraftMode::kFixed;
  const auto engine = MakeTestEngine(setup, clock);
  Request request = SimpleRequest(CountingPrompt(10, 1), 20);
  request.max_draft_len = 0;
  EXPECT_EQ(RunRequests(*engine, {request})[0][0].usage.drafts_proposed, 0);
}

TEST(Speculation, ARequestMayBoundItsDrafts) {
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.draft_mode = DraftMode::kFixed;
  setup.options.fixed_draft_len = 4;
  const auto engine = MakeTestEngine(setup, clock);
  Request request = SimpleRequest(CountingPrompt(10, 1), 40);
  request.max_draft_len = 2;
  const Usage usage = RunRequests(*engine, {request})[0][0].usage;
  EXPECT_GT(usage.drafts_proposed, 0);
  EXPECT_LE(usage.drafts_proposed, 2 * usage.draft_rounds);
}

TEST(Speculation, ChooserStopsDraftingWithADraftThatNeverAgrees) {
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.draft_mode = DraftMode::kAdaptive;
  setup.draft.share = 0.0;
  const auto engine = MakeTestEngine(setup, clock);
  const auto outputs = RunRequests(*engine, {SimpleRequest(CountingPrompt(10, 1), 200)});
  EXPECT_GT(outputs[0][0].usage.drafts_proposed, 0);
  EXPECT_LT(outputs[0][0].usage.draft_rounds, 60);
}

TEST(Speculation, ChooserDraftsFarWithAGoodCheapDraft) {
  FakeClock clock;
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.draft_mode = DraftMode::kAdaptive;
  setup.draft.share = 1.0;
  const auto engine = MakeTestEngine(setup, clock);
  const auto outputs = RunRequests(*engine, {SimpleRequest(CountingPrompt(10, 1), 200)});
  EXPECT_LT(outputs[0][0].usage.draft_rounds, 40);
  EXPECT_GT(outputs[0][0].usage.drafts_accepted, 140);
}

}  // namespace
}  // namespace tandem
