// The laws of drawing: Sample follows the filtered softmax, and both acceptance modes leave the
// target's law as it is. Each exactness test has a biased twin that must fail it, so that it is
// known to see.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/sample.h"
#include "ops/noise.h"
#include "ops/testing/chi_square.h"
#include "ops/testing/reference_sampler.h"

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

// The law of the next `length` tokens behind the prompt, from the definition. Cell: digits in base
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

class Speculation {
 public:
  Speculation(const Process& draft, const Process& target, int vocab, int num_drafts, Rule rule)
      : draft_(draft), target_(target), vocab_(vocab), num_drafts_(num_drafts), rule_(rule) {}

  // Rounds of drafting and verifying until there are `length` tokens.
  std::vector<int32_t> Generate(uint64_t seed, int length) {
    std::vector<int32_t> output;
    while (static_cast<int>(output.size()) < length) Round(seed, output);
    output.resize(static_cast<size_t>(length));
    return output;
  }

  double acceptance() const {
    return static_cast<double>(accepted_) / static_cast<double>(proposed_);
  }

 private:
  // A row of a process behind some tokens: few contexts come up, again and again.
  struct ContextRow {
    OwnedRow owned;
    SlotSampling slot;
    SampleRow row;
  };
  using ContextRows = std::map<std::vector<int32_t>, ContextRow>;

  ContextRow& RowBehind(const Process& process, ContextRows& rows,
                        const std::vector<int32_t>& output,
                        const std::vector<int32_t>& ahead) const {
    std::vector<int32_t> key = output;
    key.push_back(-1);  // drafts ahead are not yet history
    key.insert(key.end(), ahead.begin(), ahead.end());
    const auto [it, is_new] = rows.try_emplace(std::move(key));
    ContextRow& context = it->second;
    if (is_new) {
      context.owned = process.RowBehind(output, ahead, vocab_);
      context.row = context.owned.View();
      context.slot = *context.row.slot;
      context.row.slot = &context.slot;
    }
    return context;
  }

  SampledToken Draw(ContextRow& context, uint64_t seed, float* probs) {
    context.slot.params.seed = seed;
    context.row.probs = probs;
    SampledToken out;
    sampler_.Sample({&context.row, 1}, vocab_, {&out, 1});
    return out;
  }

  void Round(uint64_t seed, std::vector<int32_t>& output) {
    const auto vocab = static_cast<size_t>(vocab_);
    std::vector<int32_t> drafts;
    std::vector<int32_t> targets;
    std::vector<float> draft_probs(vocab * static_cast<size_t>(num_drafts_));
    std::vector<float> target_probs(vocab * static_cast<size_t>(num_drafts_ + 1));
    for (size_t i = 0; i < static_cast<size_t>(num_drafts_); ++i) {
      drafts.push_back(
          Draw(RowBehind(draft_, draft_rows_, output, drafts), seed, &draft_probs[i * vocab])
              .token);
    }
    for (size_t i = 0; i <= drafts.size(); ++i) {
      const std::vector<int32_t> ahead(drafts.begin(), drafts.begin() + static_cast<ptrdiff_t>(i));
      targets.push_back(
          Draw(RowBehind(target_, target_rows_, output, ahead), seed, &target_probs[i * vocab])
              .token);
    }

    int32_t next = 0;
    size_t held = 0;
    if (rule_ == Rule::kTokenMatch) {
      while (held < drafts.size() && drafts[held] == targets[held]) ++held;
      next = targets[held];
    } else {
      held = Verify(seed, output, drafts, draft_probs, target_probs, next);
    }
    proposed_ += static_cast<int64_t>(drafts.size());
    accepted_ += static_cast<int64_t>(held);
    output.insert(output.end(), drafts.begin(), drafts.begin() + static_cast<ptrdiff_t>(held));
    output.push_back(next);
  }

  size_t Verify(uint64_t seed, const std::vector<int32_t>& output, std::vector<int32_t> drafts,
                std::vector<float>& draft_probs, std::vector<float>& target_probs, int32_t& next) {
    const auto vocab = static_cast<size_t>(vocab_);
    if (rule_ == Rule::kRefuseMasked) {
      size_t usable = 0;
      while (usable < drafts.size() &&
             target_probs[usable * vocab + static_cast<size_t>(drafts[usable])] > 0.0f) {
        ++usable;
      }
      drafts.resize(usable);
    }
    const std::vector<float> unchanged = target_probs;
    SlotSampling slot;
    slot.params.seed = seed;
    const auto position = static_cast<int32_t>(target_.options.prompt.size() + output.size());
    const auto count = static_cast<int32_t>(drafts.size());
    int32_t held = 0;
    const VerifyRow row = {
        &slot, position, drafts.data(), count, draft_probs.data(), target_probs.data(),
        &held, &next};
    sampler_.VerifyAndAccept({&row, 1}, vocab_);
    if (rule_ == Rule::kRedrawFromTarget && held < count) {
      const auto p = unchanged.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(held) * vocab);
      std::discrete_distribution<int32_t> law(p, p + static_cast<ptrdiff_t>(vocab));
      next = law(random_);
    }
    return static_cast<size_t>(held);
  }

  const Process& draft_;
  const Process& target_;
  const int vocab_;
  const int num_drafts_;
  const Rule rule_;
  ThreadPool pool_{1};
  CpuSampler sampler_{pool_};
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

double JointZ(const JointCase& joint, Rule rule, uint64_t first_seed,
              double* acceptance = nullptr) {
  Speculation speculation(joint.draft, joint.target, kVocab, kDrafts, rule);
  const std::vector<double> law = JointLaw(joint.target, kVocab, kLength);
  std::vector<int64_t> counts(law.size());
  for (int i = 0; i < kDraws; ++i) {
    size_t cell = 0;
    const uint64_t seed = first_seed + static_cast<uint64_t>(i);
    for (const int32_t token : speculation.Generate(seed, kLength)) {
      cell = cell * kVocab + static_cast<size_t>(token);
    }
    ++counts[cell];
  }
  if (acceptance != nullptr) *acceptance = speculation.acceptance();
  return ChiSquareZ(counts, law);
}

TEST(RatioMode, JointLawIsTheTargetsAlone) {
  for (const JointCase& joint : JointCases()) {
    double acceptance = 0.0;
    EXPECT_LT(JointZ(joint, Rule::kRatio, 1'000'000, &acceptance), kAgrees) << joint.name;
    EXPECT_GT(acceptance, 0.15) << joint.name;  // otherwise little was tested
    EXPECT_LT(acceptance, 0.95) << joint.name;
  }
}

TEST(RatioMode, JointLawHoldsForOtherSeeds) {
  const JointCase joint = JointCases().back();
  for (const uint64_t seed : {uint64_t{1} << 40, uint64_t{1} << 63}) {
    EXPECT_LT(JointZ(joint, Rule::kRatio, seed), kAgrees);
  }
}

TEST(TokenMatchMode, JointLawIsTheTargetsAlone) {
  // Its tokens are the target's own draws, whose law for each option is tested by itself.
  const std::vector<JointCase> cases = JointCases();
  EXPECT_LT(JointZ(cases.front(), Rule::kTokenMatch, 2'000'000), kAgrees);
  EXPECT_LT(JointZ(cases.back(), Rule::kTokenMatch, 2'000'000), kAgrees);
}

TEST(BiasedControl, DrawingFromTheTargetAfterARejectionIsCaught) {
  EXPECT_GT(JointZ(JointCases().front(), Rule::kRedrawFromTarget, 1'000'000), kDiffers);
}

TEST(BiasedControl, DroppingADrawnDraftIsCaught) {
  const std::vector<JointCase> cases = JointCases();
  const auto masks = std::find_if(cases.begin(), cases.end(),
                                  [](const JointCase& c) { return c.name == "masks and bans"; });
  ASSERT_NE(masks, cases.end());
  EXPECT_GT(JointZ(*masks, Rule::kRefuseMasked, 1'000'000), kDiffers);
}

TEST(TokenMatchMode, TextOfASeedDoesNotDependOnTheDraft) {
  const std::vector<JointCase> cases = JointCases();
  for (const JointCase& joint : cases) {
    const Process nonsense = Plain(99);
    Speculation with(joint.draft, joint.target, kVocab, 3, Rule::kTokenMatch);
    Speculation other(nonsense, joint.target, kVocab, 5, Rule::kTokenMatch);
    Speculation alone(nonsense, joint.target, kVocab, 0, Rule::kTokenMatch);
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<int32_t> expected = alone.Generate(seed, 24);
      ASSERT_EQ(with.Generate(seed, 24), expected) << joint.name << ' ' << seed;
      ASSERT_EQ(other.Generate(seed, 24), expected) << joint.name << ' ' << seed;
    }
  }
}

TEST(Sample, FollowsTheFilteredSoftmax) {
  constexpr int kManyTokens = 60;
  ThreadPool pool(1);
  CpuSampler sampler(pool);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  const auto check = [&](const char* name, auto set) {
    OwnedRow row;
    for (int i = 0; i < kManyTokens; ++i) row.logits.push_back(normal(random));
    row.prompt = {3, 3, 7};
    set(row);
    const std::vector<double> law = ReferenceSample(row).probs;
    std::vector<int64_t> counts(law.size());
    SampleRow view = row.View();
    SlotSampling slot = *view.slot;
    view.slot = &slot;
    for (uint64_t seed = 0; seed < 200'000; ++seed) {
      slot.params.seed = seed;
      SampledToken out;
      sampler.Sample({&view, 1}, kManyTokens, {&out, 1});
      ++counts[static_cast<size_t>(out.token)];
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
TEST(Sample, FollowsTheSoftmaxAlongPositionsAndChoices) {
  ThreadPool pool(1);
  CpuSampler sampler(pool);
  OwnedRow row;
  row.logits = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f, -0.3f, 0.1f, 1.5f};
  row.prompt.assign(20'000, 0);
  const std::vector<double> law = ReferenceSample(row).probs;
  std::vector<int64_t> counts(law.size());
  SampleRow view = row.View();
  SlotSampling slot = *view.slot;
  view.slot = &slot;
  for (slot.params.choice = 0; slot.params.choice < 8; ++slot.params.choice) {
    for (view.history.num_tokens = 1; view.history.num_tokens < 20'000; ++view.history.num_tokens) {
      SampledToken out;
      sampler.Sample({&view, 1}, row.vocab(), {&out, 1});
      ++counts[static_cast<size_t>(out.token)];
    }
  }
  EXPECT_LT(ChiSquareZ(counts, law), kAgrees);
}

// Why token-match mode is worth having: with shared noise draft and target mostly pick the same
// token.
TEST(TokenMatchMode, SharedNoiseAcceptsNearlyAsOftenAsTheRatioRule) {
  constexpr int kTokens = 50;
  constexpr int kPairs = 20'000;
  ThreadPool pool(1);
  CpuSampler sampler(pool);
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  double ratio = 0.0;
  int shared = 0;
  int independent = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
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
    const auto draw = [&](OwnedRow& row) {
      const SampleRow view = row.View();
      SampledToken out;
      sampler.Sample({&view, 1}, kTokens, {&out, 1});
      return out.token;
    };
    const int32_t token = draw(target);
    shared += draw(draft) == token ? 1 : 0;
    draft.params.seed = random();
    independent += draw(draft) == token ? 1 : 0;
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
