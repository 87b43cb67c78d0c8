// The laws of drawing, on every backend: Sample follows the filtered softmax, and both acceptance
// modes preserve the target's law. Each exactness test has a biased variant that must fail it, to
// prove that the test can detect a bias.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/noise.h"
#include "ops/testing/chi_square.h"
#include "ops/testing/reference_sampler.h"
#include "ops/testing/sampling_memory.h"

namespace tandem::ops {
namespace {

constexpr double kAgrees = 4.0;  // standard deviations; all seeds are fixed
constexpr double kDiffers = 8.0;

// The logits of a made-up language model: any function of the last two tokens will do. Models share
// half of it, so that a draft is often right.
std::vector<float> ModelLogits(uint64_t model, const std::vector<int32_t>& context, int vocab) {
  const size_t n = context.size();
  const auto number = [&](uint64_t of, int token) {
    uint64_t x = MixBits64(of * 64 + static_cast<uint64_t>(token) + 1);
    x = MixBits64(x + static_cast<uint64_t>(context[n - 1]) * 64 +
                  static_cast<uint64_t>(context[n - 2]));
    return static_cast<float>(x >> 40) * 0x1p-24f * 2.4f - 1.2f;
  };
  std::vector<float> logits;
  for (int i = 0; i < vocab; ++i) logits.push_back(number(0, i) + number(model, i));
  return logits;
}

// A draft or a target: a model and the options it is sampled with.
struct Process {
  uint64_t model = 0;
  OwnedRow options;  // params, bans, bias, mask, prompt; its logits and drafts are filled in

  OwnedRow RowBehind(const std::vector<int32_t>& output, const std::vector<int32_t>& ahead,
                     int vocab) const {
    OwnedRow row = options;
    row.output = output;
    row.ahead = ahead;
    row.logits = ModelLogits(model, ReferenceContext(row), vocab);
    return row;
  }
};

// The law of the next `length` tokens after the prompt, from the definition. Cell: digits in base
// vocab.
std::vector<double> JointLaw(const Process& process, int vocab, int length) {
  std::vector<double> law = {1.0};
  for (int depth = 0; depth < length; ++depth) {
    std::vector<double> longer;
    for (size_t cell = 0; cell < law.size(); ++cell) {
      std::vector<int32_t> output(static_cast<size_t>(depth));
      size_t rest = cell;
      for (size_t i = output.size(); i-- > 0; rest /= static_cast<size_t>(vocab)) {
        output[i] = static_cast<int32_t>(rest % static_cast<size_t>(vocab));
      }
      const ReferenceDraw draw = ReferenceSample(process.RowBehind(output, {}, vocab));
      for (const double p : draw.probs) longer.push_back(law[cell] * p);
    }
    law = std::move(longer);
  }
  return law;
}

enum class Rule {
  kRatio,
  kTokenMatch,
  kRedrawFromTarget,  // biased: after a rejection draws from p, not from max(p - q, 0)
  kRefuseMasked,  // biased: drops a drawn draft that the target's mask forbids, and what follows it
};

// Speculative sequences of many seeds, whose rounds run together, so that a device gets all their
// rows at once.
class Speculation {
 public:
  Speculation(Backend& backend, const Process& draft, const Process& target, int vocab,
              int num_drafts, Rule rule)
      : draft_(draft),
        target_(target),
        vocab_(static_cast<size_t>(vocab)),
        num_drafts_(static_cast<size_t>(num_drafts)),
        rule_(rule),
        contexts_(backend),
        memory_(backend) {}

  // Rounds of drafting and verifying until there are `length` tokens of each seed.
  std::vector<std::vector<int32_t>> Generate(uint64_t first_seed, int count, int length) {
    std::vector<Sequence> sequences(static_cast<size_t>(count));
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].seed = first_seed + i;
    const auto is_short = [&](const Sequence& s) {
      return static_cast<int>(s.output.size()) < length;
    };
    while (true) {
      std::vector<Sequence*> active;
      for (Sequence& sequence : sequences) {
        if (is_short(sequence)) active.push_back(&sequence);
      }
      if (active.empty()) break;
      Round(active);
    }
    std::vector<std::vector<int32_t>> outputs;
    for (Sequence& sequence : sequences) {
      sequence.output.resize(static_cast<size_t>(length));
      outputs.push_back(std::move(sequence.output));
    }
    return outputs;
  }

  double acceptance() const {
    return static_cast<double>(accepted_) / static_cast<double>(proposed_);
  }

 private:
  struct Sequence {
    uint64_t seed = 0;
    std::vector<int32_t> output;
    std::vector<int32_t> drafts;   // of the current round
    std::vector<int32_t> targets;  // the target's own draws
  };
  // A row of a process after some tokens, and its slot except the seed: only few contexts occur,
  // again and again.
  struct ContextRow {
    SampleRow row;
    SlotSampling slot;
  };
  using ContextRows = std::map<std::vector<int32_t>, ContextRow>;

  const ContextRow& RowBehind(const Process& process, ContextRows& rows,
                              const std::vector<int32_t>& output,
                              const std::vector<int32_t>& ahead) {
    std::vector<int32_t> key = output;
    key.push_back(-1);  // drafts ahead are not yet history
    key.insert(key.end(), ahead.begin(), ahead.end());
    const auto [it, is_new] = rows.try_emplace(std::move(key));
    ContextRow& context = it->second;
    if (is_new) {
      context.row = process.RowBehind(output, ahead, static_cast<int>(vocab_)).Place(contexts_);
      contexts_.Upload();
      context.slot = contexts_.Get(context.row.slot, 1)[0];
    }
    return context;
  }

  // Rows collected for one draw, with their slots.
  struct Draws {
    std::vector<SampleRow> rows;
    std::vector<SlotSampling> slots;

    void Add(const ContextRow& context, uint64_t seed, float* probs) {
      rows.push_back(context.row);
      rows.back().probs = probs;
      slots.push_back(context.slot);
      slots.back().params.seed = seed;
    }
  };
  std::vector<SampledToken> Run(Draws& draws) {
    const size_t before = memory_.size();
    const SlotSampling* slots = memory_.Put(draws.slots);
    for (size_t i = 0; i < draws.rows.size(); ++i) draws.rows[i].slot = slots + i;
    std::vector<SampledToken> drawn = memory_.Draw(draws.rows, static_cast<int64_t>(vocab_));
    memory_.Rewind(before);
    return drawn;
  }

  void Round(const std::vector<Sequence*>& active) {
    memory_.Rewind(0);
    const size_t rows = num_drafts_ + 1;  // of the target, per sequence
    float* draft_probs = memory_.Room<float>(active.size() * num_drafts_ * vocab_);
    float* target_probs = memory_.Room<float>(active.size() * rows * vocab_);
    memory_.Upload();
    for (Sequence* sequence : active) sequence->drafts.clear();
    for (size_t i = 0; i < num_drafts_; ++i) {
      Draws draws;
      for (size_t s = 0; s < active.size(); ++s) {
        draws.Add(RowBehind(draft_, draft_rows_, active[s]->output, active[s]->drafts),
                  active[s]->seed, draft_probs + (s * num_drafts_ + i) * vocab_);
      }
      const std::vector<SampledToken> drawn = Run(draws);
      for (size_t s = 0; s < active.size(); ++s) active[s]->drafts.push_back(drawn[s].token);
    }
    Draws draws;
    for (size_t s = 0; s < active.size(); ++s) {
      for (size_t i = 0; i < rows; ++i) {
        const std::vector<int32_t> ahead(active[s]->drafts.begin(),
                                         active[s]->drafts.begin() + static_cast<ptrdiff_t>(i));
        draws.Add(RowBehind(target_, target_rows_, active[s]->output, ahead), active[s]->seed,
                  target_probs + (s * rows + i) * vocab_);
      }
    }
    const std::vector<SampledToken> drawn = Run(draws);
    for (size_t s = 0; s < active.size(); ++s) {
      active[s]->targets.clear();
      for (size_t i = 0; i < rows; ++i) {
        active[s]->targets.push_back(drawn[s * rows + i].token);
      }
    }
    if (rule_ == Rule::kTokenMatch) {
      for (Sequence* sequence : active) {
        size_t held = 0;
        while (held < num_drafts_ && sequence->drafts[held] == sequence->targets[held]) ++held;
        Append(*sequence, held, sequence->targets[held]);
      }
    } else {
      Verify(active, draft_probs, target_probs);
    }
  }

  void Append(Sequence& sequence, size_t held, int32_t next) {
    proposed_ += static_cast<int64_t>(sequence.drafts.size());
    accepted_ += static_cast<int64_t>(held);
    sequence.output.insert(sequence.output.end(), sequence.drafts.begin(),
                           sequence.drafts.begin() + static_cast<ptrdiff_t>(held));
    sequence.output.push_back(next);
  }

  void Verify(const std::vector<Sequence*>& active, const float* draft_probs, float* target_probs) {
    const size_t stride = (num_drafts_ + 1) * vocab_;  // of a sequence's target_probs
    const std::vector<float> unchanged = memory_.Get(target_probs, active.size() * stride);
    std::vector<VerifyRow> rows;
    for (size_t s = 0; s < active.size(); ++s) {
      Sequence& sequence = *active[s];
      if (rule_ == Rule::kRefuseMasked) {
        size_t usable = 0;
        while (
            usable < sequence.drafts.size() &&
            unchanged[s * stride + usable * vocab_ + static_cast<size_t>(sequence.drafts[usable])] >
                0.0f) {
          ++usable;
        }
        sequence.drafts.resize(usable);
      }
      SlotSampling slot;
      slot.params.seed = sequence.seed;
      VerifyRow& row = rows.emplace_back();
      row.slot = memory_.Put(std::span<const SlotSampling>(&slot, 1));
      row.position = static_cast<int32_t>(target_.options.prompt.size() + sequence.output.size());
      row.draft = memory_.Put(sequence.drafts);
      row.num_draft = static_cast<int32_t>(sequence.drafts.size());
      row.draft_probs = draft_probs + s * num_drafts_ * vocab_;
      row.target_probs = target_probs + s * stride;
    }
    const auto verified = memory_.Verify(rows, static_cast<int64_t>(vocab_));
    for (size_t s = 0; s < active.size(); ++s) {
      const auto held = static_cast<size_t>(verified[s].accepted);
      int32_t next = verified[s].next;
      if (rule_ == Rule::kRedrawFromTarget && held < active[s]->drafts.size()) {
        const auto p = unchanged.begin() + static_cast<ptrdiff_t>(s * stride + held * vocab_);
        std::discrete_distribution<int32_t> law(p, p + static_cast<ptrdiff_t>(vocab_));
        next = law(random_);
      }
      Append(*active[s], held, next);
    }
  }

  const Process& draft_;
  const Process& target_;
  const size_t vocab_;
  const size_t num_drafts_;
  const Rule rule_;
  SamplingMemory contexts_;
  SamplingMemory memory_;  // of a round
  ContextRows draft_rows_;
  ContextRows target_rows_;
  std::mt19937_64 random_{1};
  int64_t proposed_ = 0;
  int64_t accepted_ = 0;
};

struct JointCase {
  std::string name;
  Process draft;
  Process target;
};

Process Plain(uint64_t model) {
  Process process;
  process.model = model;
  process.options.prompt = {1, 2, 0};
  return process;
}

// Draft and target differ in their models, and in one more way each.
std::vector<JointCase> JointCases() {
  std::vector<JointCase> cases;
  const auto add = [&](const char* name) -> JointCase& {
    cases.push_back({name, Plain(5), Plain(6)});
    return cases.back();
  };
  add("plain");
  {
    JointCase& c = add("temperature");
    c.draft.options.params.temperature = 0.6f;
    c.target.options.params.temperature = 1.4f;
  }
  {
    JointCase& c = add("top_k");
    c.draft.options.params.top_k = 2;
    c.target.options.params.top_k = 3;
  }
  {
    JointCase& c = add("top_p");
    c.draft.options.params.top_p = 0.6f;
    c.target.options.params.top_p = 0.85f;
  }
  {
    JointCase& c = add("min_p");
    c.draft.options.params.min_p = 0.3f;
    c.target.options.params.min_p = 0.1f;
  }
  {
    JointCase& c = add("penalties");
    c.draft.options.params.repetition_penalty = 1.5f;
    c.target.options.params.frequency_penalty = 0.7f;
    c.target.options.params.presence_penalty = 0.4f;
  }
  {
    JointCase& c = add("masks and bans");
    c.draft.options.allowed = {0b0111};
    c.target.options.allowed = {0b1101};
    c.target.options.bans = {{2, 2}};
  }
  {
    JointCase& c = add("target unfiltered, draft greedy");
    c.draft.options.params.temperature = 0.0f;
  }
  {
    JointCase& c = add("everything");
    c.draft.options.params.temperature = 1.3f;
    c.draft.options.params.top_k = 3;
    c.target.options.params.temperature = 0.8f;
    c.target.options.params.top_p = 0.9f;
    c.target.options.params.repetition_penalty = 1.2f;
    c.target.options.params.no_repeat_ngram_size = 3;
    c.target.options.params.min_tokens = 2;
    c.target.options.end_ids = {3};
    c.target.options.bias_ids = {1};
    c.target.options.bias_values = {0.5f};
  }
  return cases;
}

constexpr int kVocab = 4;
constexpr int kDrafts = 2;
constexpr int kLength = kDrafts + 2;  // past the end of a round: the next one starts in the middle
constexpr int kDraws = 100'000;

class SampleLawTest : public ::testing::TestWithParam<SamplingBackend> {
 protected:
  double JointZ(const JointCase& joint, Rule rule, uint64_t first_seed,
                double* acceptance = nullptr) {
    constexpr int kWave = 10'000;  // sequences side by side
    Speculation speculation(*backend_, joint.draft, joint.target, kVocab, kDrafts, rule);
    const std::vector<double> law = JointLaw(joint.target, kVocab, kLength);
    std::vector<int64_t> counts(law.size());
    for (int first = 0; first < kDraws; first += kWave) {
      const uint64_t seed = first_seed + static_cast<uint64_t>(first);
      for (const std::vector<int32_t>& tokens : speculation.Generate(seed, kWave, kLength)) {
        size_t cell = 0;
        for (const int32_t token : tokens) cell = cell * kVocab + static_cast<size_t>(token);
        ++counts[cell];
      }
    }
    if (acceptance != nullptr) *acceptance = speculation.acceptance();
    return ChiSquareZ(counts, law);
  }

  std::unique_ptr<Backend> backend_ = GetParam().make();
  SamplingMemory memory_{*backend_};
};

INSTANTIATE_TEST_SUITE_P(Backends, SampleLawTest, ::testing::ValuesIn(SamplingBackends()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SampleLawTest, RatioModeLeavesTheTargetsJointLaw) {
  for (const JointCase& joint : JointCases()) {
    double acceptance = 0.0;
    EXPECT_LT(JointZ(joint, Rule::kRatio, 1'000'000, &acceptance), kAgrees) << joint.name;
    EXPECT_GT(acceptance, 0.15) << joint.name;  // otherwise little was tested
    EXPECT_LT(acceptance, 0.95) << joint.name;
  }
}

TEST_P(SampleLawTest, RatioModeHoldsForOtherSeeds) {
  const JointCase joint = JointCases().back();
  for (const uint64_t seed : {uint64_t{1} << 40, uint64_t{1} << 63}) {
    EXPECT_LT(JointZ(joint, Rule::kRatio, seed), kAgrees);
  }
}

TEST_P(SampleLawTest, TokenMatchModeLeavesTheTargetsJointLaw) {
  // Its tokens are the target's own draws, whose law is tested separately for each option.
  const std::vector<JointCase> cases = JointCases();
  EXPECT_LT(JointZ(cases.front(), Rule::kTokenMatch, 2'000'000), kAgrees);
  EXPECT_LT(JointZ(cases.back(), Rule::kTokenMatch, 2'000'000), kAgrees);
}

TEST_P(SampleLawTest, DrawingFromTheTargetAfterARejectionIsCaught) {
  EXPECT_GT(JointZ(JointCases().front(), Rule::kRedrawFromTarget, 1'000'000), kDiffers);
}

TEST_P(SampleLawTest, DroppingADrawnDraftIsCaught) {
  const std::vector<JointCase> cases = JointCases();
  const auto masks = std::find_if(cases.begin(), cases.end(),
                                  [](const JointCase& c) { return c.name == "masks and bans"; });
  ASSERT_NE(masks, cases.end());
  EXPECT_GT(JointZ(*masks, Rule::kRefuseMasked, 1'000'000), kDiffers);
}

TEST_P(SampleLawTest, TokenMatchModesTextOfASeedDoesNotDependOnTheDraft) {
  const std::vector<JointCase> cases = JointCases();
  for (const JointCase& joint : cases) {
    const Process nonsense = Plain(99);
    Speculation with(*backend_, joint.draft, joint.target, kVocab, 3, Rule::kTokenMatch);
    Speculation other(*backend_, nonsense, joint.target, kVocab, 5, Rule::kTokenMatch);
    Speculation alone(*backend_, nonsense, joint.target, kVocab, 0, Rule::kTokenMatch);
    const auto expected = alone.Generate(0, 50, 24);
    EXPECT_EQ(with.Generate(0, 50, 24), expected) << joint.name;
    EXPECT_EQ(other.Generate(0, 50, 24), expected) << joint.name;
  }
}

TEST_P(SampleLawTest, DrawsFollowTheFilteredSoftmax) {
  constexpr int kManyTokens = 60;
  constexpr size_t kWave = 20'000;
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  const auto check = [&](const char* name, auto set) {
    OwnedRow row;
    for (int i = 0; i < kManyTokens; ++i) row.logits.push_back(normal(random));
    row.prompt = {3, 3, 7};
    set(row);
    const std::vector<double> law = ReferenceSample(row).probs;
    std::vector<int64_t> counts(law.size());
    for (uint64_t first = 0; first < 200'000; first += kWave) {
      memory_.Rewind(0);
      std::vector<SampleRow> rows(kWave, row.Place(memory_));
      memory_.Upload();
      std::vector<SlotSampling> slots(kWave, memory_.Get(rows[0].slot, 1)[0]);
      for (size_t i = 0; i < kWave; ++i) slots[i].params.seed = first + i;
      const SlotSampling* placed = memory_.Put(slots);
      for (size_t i = 0; i < kWave; ++i) rows[i].slot = placed + i;
      for (const SampledToken& drawn : memory_.Draw(rows, kManyTokens)) {
        ++counts[static_cast<size_t>(drawn.token)];
      }
    }
    EXPECT_LT(ChiSquareZ(counts, law), kAgrees) << name;
  };
  check("plain", [](OwnedRow&) {});
  check("temperature", [](OwnedRow& row) { row.params.temperature = 0.5f; });
  check("top_k", [](OwnedRow& row) { row.params.top_k = 10; });
  check("top_p", [](OwnedRow& row) { row.params.top_p = 0.8f; });
  check("min_p", [](OwnedRow& row) { row.params.min_p = 0.05f; });
  check("repetition", [](OwnedRow& row) { row.params.repetition_penalty = 1.7f; });
  check("top_k and top_p", [](OwnedRow& row) {
    row.params.top_k = 20;
    row.params.top_p = 0.7f;
  });
}

// Along one sequence the seed stays and the position moves: the other axis of the noise.
TEST_P(SampleLawTest, DrawsFollowTheSoftmaxAlongPositionsAndChoices) {
  OwnedRow row;
  row.logits = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f, -0.3f, 0.1f, 1.5f};
  row.prompt.assign(20'000, 0);
  const std::vector<double> law = ReferenceSample(row).probs;
  std::vector<int64_t> counts(law.size());
  for (row.params.choice = 0; row.params.choice < 8; ++row.params.choice) {
    memory_.Rewind(0);
    std::vector<SampleRow> rows(row.prompt.size() - 1, row.Place(memory_));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].history.num_tokens = static_cast<int32_t>(i) + 1;
    }
    for (const SampledToken& drawn : memory_.Draw(rows, row.vocab())) {
      ++counts[static_cast<size_t>(drawn.token)];
    }
  }
  EXPECT_LT(ChiSquareZ(counts, law), kAgrees);
}

// The reason for token-match mode: with shared noise draft and target mostly pick the same token.
TEST_P(SampleLawTest, SharedNoiseAcceptsNearlyAsOftenAsTheRatioRule) {
  constexpr int kTokens = 50;
  constexpr int kPairs = 20'000;
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  double ratio = 0.0;
  int shared = 0;
  int independent = 0;
  std::vector<SampleRow>
      rows;  // of a pair: the target's, the draft's, the draft's with other noise
  for (int pair = 1; pair <= kPairs; ++pair) {
    OwnedRow draft;
    OwnedRow target;
    for (int i = 0; i < kTokens; ++i) {
      const float common = 2.0f * normal(random);
      draft.logits.push_back(common + 0.35f * normal(random));
      target.logits.push_back(common + 0.35f * normal(random));
    }
    draft.prompt = target.prompt = {0};
    draft.params.seed = target.params.seed = random();
    const std::vector<double> q = ReferenceSample(draft).probs;
    const std::vector<double> p = ReferenceSample(target).probs;
    for (size_t i = 0; i < p.size(); ++i) ratio += std::min(p[i], q[i]);
    rows.push_back(target.Place(memory_));
    rows.push_back(draft.Place(memory_));
    draft.params.seed = random();
    rows.push_back(draft.Place(memory_));
    if (pair % 1000 != 0) continue;
    const std::vector<SampledToken> drawn = memory_.Draw(rows, kTokens);
    for (size_t i = 0; i < drawn.size(); i += 3) {
      shared += drawn[i].token == drawn[i + 1].token ? 1 : 0;
      independent += drawn[i].token == drawn[i + 2].token ? 1 : 0;
    }
    rows.clear();
    memory_.Rewind(0);
  }
  RecordProperty("ratio", std::to_string(ratio / kPairs));
  RecordProperty("shared", std::to_string(static_cast<double>(shared) / kPairs));
  EXPECT_GT(ratio / kPairs, 0.7);
  EXPECT_LT(ratio / kPairs, 0.9);
  EXPECT_GT(shared, 0.9 * ratio);
  EXPECT_LT(shared, ratio);  // no coupling can beat the ratio rule
  EXPECT_LT(independent, 0.5 * ratio);
}

}  // namespace
}  // namespace tandem::ops
