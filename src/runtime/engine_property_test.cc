// Random traffic: requests of every shape, some sent twice, cancelled and timed out at random,
// under every policy, over pools that may hold exactly one longest sequence. The block counts are
// consistent after every step, nothing is referenced at the end, and every request that was not
// disturbed got the tokens of the target alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "runtime/request/validate_request.h"
#include "runtime/testing/test_engine.h"

namespace tandem {
namespace {

struct Traffic {
  Request request;
  std::vector<std::vector<int32_t>> expected;  // by choice
  RequestId id = 0;
  std::set<int32_t> cancelled;  // choices, or kAllChoices
};

// Allows what is not congruent to the token before, modulo a number.
class OtherRest final : public TokenConstraint {
 public:
  explicit OtherRest(int32_t modulus) : modulus_(modulus) {}
  void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) override {
    const int32_t last = ahead.empty() ? last_ : ahead.back();
    for (int32_t token = last % modulus_; token < 48; token += modulus_) {
      allowed[token / 32] &= ~(1u << (token % 32));
    }
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    for (int32_t i = 0; i < num_tokens; ++i) {
      EXPECT_NE(tokens[i] % modulus_, last_ % modulus_) << "a token the mask forbade";
      last_ = tokens[i];
    }
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<OtherRest>(*this);
  }

 private:
  int32_t modulus_;
  int32_t last_ = 1;
};

class EnginePropertyTest : public testing::TestWithParam<int> {
 protected:
  int32_t Random(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  Request RandomRequest() {
    Request request = SimpleRequest(CountingPrompt(Random(1, 90), Random(0, 3)), Random(1, 60));
    request.seed = static_cast<uint64_t>(Random(1, 5));
    request.sampling.temperature = Random(0, 2) == 0 ? 0.0f : 1.0f;
    request.sampling.repetition_penalty = Random(0, 3) == 0 ? 1.2f : 1.0f;
    request.num_choices = Random(0, 4) == 0 ? Random(2, 4) : 1;
    request.priority = Random(0, 2) / 2.0;
    if (Random(0, 2) == 0) request.max_draft_len = Random(0, 3);
    if (Random(0, 2) == 0) request.end_ids = {Random(0, 47), Random(0, 47)};
    if (Random(0, 3) == 0) request.constraint = std::make_shared<OtherRest>(Random(2, 6));
    if (Random(0, 3) == 0) request.stop_sequences = {{Random(0, 47)}, {3, Random(0, 47)}};
    if (Random(0, 3) == 0) request.banned_sequences = {{Random(0, 47)}, {Random(0, 47), 5}};
    if (Random(0, 3) == 0) request.logit_bias = {{Random(0, 47), 3.0f}, {Random(0, 47), -3.0f}};
    if (Random(0, 5) == 0) request.sampling.no_repeat_ngram_size = 2;
    if (Random(0, 5) == 0) request.sampling.min_tokens = Random(0, request.max_tokens);
    if (Random(0, 5) == 0) request.sampling.num_top_logprobs = Random(0, 3);
    if (Random(0, 5) == 0) request.cache_key = "other";
    request.return_context_logits = Random(0, 3) == 0;
    request.return_generation_logits = Random(0, 3) == 0;
    if (Random(0, 3) == 0) request.num_prompt_logprobs = Random(0, 3);
    return request;
  }

  // The beginning of the answer, sometimes with a wrong token in it.
  void SendDraft(const std::vector<int32_t>& answer, int32_t most, Request& request) {
    const int32_t count = Random(0, std::min(most, static_cast<int32_t>(answer.size())));
    request.draft.tokens.assign(answer.begin(), answer.begin() + count);
    if (count == 0 || Random(0, 2) == 0) return;
    request.draft.tokens[static_cast<size_t>(Random(0, count - 1))] = Random(0, 47);
  }

  TestSetup RandomSetup() {
    TestSetup setup;
    EngineOptions& options = setup.options;
    options = SmallOptions();
    options.max_batch_size = Random(4, 8);
    options.max_num_tokens = Random(8, 80);
    options.block_tokens = 1 << Random(2, 4);
    options.policy = static_cast<SchedulerPolicy>(Random(0, 2));
    options.steps_in_flight = Random(0, 3);
    options.enable_prefix_reuse = Random(0, 3) != 0;
    options.draft_mode = static_cast<DraftMode>(Random(0, 2));
    options.lookup_ngram = Random(0, 2);
    if (Random(0, 3) == 0) {
      options.enable_chunked_prefill = false;
      options.max_num_tokens = Random(90, 120);
    }
    if (Random(0, 2) == 0) setup.draft_max_positions = Random(1, 120);
    if (Random(0, 2) == 0) setup.draft.vocab = Random(20, 60);
    setup.draft.share = Random(0, 10) / 10.0;
    // Many masks come too late for their step.
    if (Random(0, 1) == 0) setup.mask_patience = Nanos(0);
    // The longest sequence has 150 tokens; in every third pool nothing else fits.
    const int32_t spare = Random(0, 2) == 0 ? 0 : Random(1, 40);
    setup.num_blocks = (150 + options.block_tokens - 1) / options.block_tokens + spare;
    options.max_seq_len = 150;
    if (options.enable_prefix_reuse && Random(0, 1) == 0) setup.num_host_blocks = Random(1, 80);
    return setup;
  }

  std::mt19937 random_;
};

TEST_P(EnginePropertyTest, HoldsUnderRandomTraffic) {
  random_.seed(static_cast<uint32_t>(GetParam()));
  TestSetup plain;
  plain.options = SmallOptions();
  plain.options.enable_prefix_reuse = false;
  FakeClock clock;
  const auto reference = MakeTestEngine(plain, clock);
  std::vector<Traffic> traffic(40);
  for (size_t i = 0; i < traffic.size(); ++i) {
    Traffic& item = traffic[i];
    item.request = RandomRequest();
    // Every second request is sent twice, sometimes with another length.
    if (i % 4 == 1) {
      const int32_t max_tokens = item.request.max_tokens;
      item.request = traffic[i - 1].request;
      item.request.deadline.reset();
      if (Random(0, 1) == 0) item.request.max_tokens = max_tokens;
    }
    SamplingParams& sampling = item.request.sampling;
    sampling.min_tokens = std::min(sampling.min_tokens, item.request.max_tokens);
    const auto outputs = RunRequests(*reference, {item.request});
    for (const Output& output : outputs[0]) item.expected.push_back(output.tokens);
    if (Random(0, 9) == 0) item.request.deadline = clock.Now() + Nanos(Random(0, 60));
  }

  const auto engine = MakeTestEngine(RandomSetup(), clock);
  Outputs outputs;
  size_t submitted = 0, choices = 0;
  int idle_steps = 0;
  for (int step = 0; idle_steps < 3; ++step) {
    ASSERT_LT(step, 20000) << "the traffic never ends";
    while (submitted < traffic.size() && Random(0, 2) == 0) {
      Traffic& item = traffic[submitted++];
      if (Random(0, 2) == 0) {
        SendDraft(item.expected[0], engine->limits().max_sent_drafts, item.request);
      }
      const Result<RequestId> id = engine->Submit(item.request);
      ASSERT_TRUE(id.ok()) << id.status().ToString();
      item.id = *id;
      choices += static_cast<size_t>(item.request.num_choices);
    }
    if (submitted > 0 && Random(0, 15) == 0) {
      Traffic& victim =
          traffic[static_cast<size_t>(Random(0, static_cast<int32_t>(submitted) - 1))];
      const int32_t choice = Random(kAllChoices, victim.request.num_choices - 1);
      engine->Cancel(victim.id, choice);
      victim.cancelled.insert(choice);
    }
    const bool worked = engine->Step();
    engine->CheckIntegrity();
    clock.Advance(Nanos(1));
    ReadEvents(*engine, outputs);
    idle_steps = worked || submitted < traffic.size() ? 0 : idle_steps + 1;
  }
  EXPECT_EQ(engine->Stats().kv.referenced_blocks, 0);
  EXPECT_EQ(engine->Stats().running, 0);
  ASSERT_EQ(outputs.size(), choices);
  for (const Traffic& item : traffic) {
    for (size_t c = 0; c < item.expected.size(); ++c) {
      const Output& output = outputs[{item.id, static_cast<int32_t>(c)}];
      EXPECT_NE(output.finish, FinishReason::kNone);
      EXPECT_NE(output.finish, FinishReason::kFailed) << output.error.ToString();
      const bool cancelled =
          item.cancelled.contains(kAllChoices) || item.cancelled.contains(static_cast<int32_t>(c));
      const bool drew = !output.tokens.empty();
      if (drew) {
        EXPECT_EQ(output.context_logits.size(),
                  item.request.return_context_logits && c == 0 ? item.request.prompt.size() : 0);
        EXPECT_EQ(output.prompt_logprobs.size(),
                  item.request.num_prompt_logprobs >= 0 && c == 0 ? item.request.prompt.size() : 0);
      }
      EXPECT_EQ(output.generation_logits.size(),
                item.request.return_generation_logits ? output.tokens.size() : 0);
      if (!item.request.deadline && !cancelled) {
        EXPECT_EQ(output.tokens, item.expected[c]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EnginePropertyTest, testing::Range(0, 60));

}  // namespace
}  // namespace tandem
