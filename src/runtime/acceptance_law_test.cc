// What speculation emits follows the target's law: the joint distribution of k + 2 tokens, counted
// over many seeds, against the exact one, in both modes of acceptance; and how often drafts hold in
// each.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "ops/testing/sampling_only_ops.h"
#include "runtime/test_engine.h"

namespace tandem {
namespace {

constexpr int64_t kVocab = 5;
constexpr int32_t kDrafts = 2;
constexpr int32_t kTokens = kDrafts + 2;
constexpr int32_t kDraws = 100000;
constexpr int32_t kControlDraws = 20000;  // enough to find a wrong law out
constexpr int32_t kWave = 1000;           // requests submitted at once

TestSetup SmallVocabulary() {
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.max_batch_size = 64;
  setup.options.max_num_tokens = 512;
  setup.options.max_queue_size = kWave;
  setup.options.draft_mode = DraftMode::kFixed;
  setup.options.fixed_draft_len = kDrafts;
  setup.options.max_draft_len = kDrafts;
  setup.target = {.vocab = kVocab, .share = 1.0, .scale = 3.0f};
  setup.draft = {.vocab = kVocab, .share = 0.5, .scale = 3.0f};
  return setup;
}

// Tokens other than the one before.
class NoTwins final : public TokenConstraint {
 public:
  void FillMask(const int32_t* ahead, int32_t num_ahead, uint32_t* allowed) override {
    const int32_t last = num_ahead > 0 ? ahead[num_ahead - 1] : last_;
    allowed[0] &= ~(1u << last);
  }
  void Commit(const int32_t* tokens, int32_t num_tokens) override {
    last_ = tokens[num_tokens - 1];
  }
  std::unique_ptr<TokenConstraint> Clone() const override {
    return std::make_unique<NoTwins>(*this);
  }

 private:
  int32_t last_ = 2;
};

using Law = std::map<std::vector<int32_t>, double>;  // probability of the kTokens tokens

// The exact law, by the sampler's own filtered distribution behind every possible prefix.
void AddLaw(const FormulaPass& model, const Request& request, std::vector<int32_t>& context,
            double probability, Law& law) {
  const size_t prompt = request.prompt.size();
  if (context.size() == prompt + kTokens) {
    law[{context.begin() + static_cast<ptrdiff_t>(prompt), context.end()}] = probability;
    return;
  }
  const std::vector<float> logits = model.Logits(context);
  ops::SlotSampling slot;
  slot.params = request.sampling;
  std::vector<int32_t> counts(kVocab);
  for (const int32_t token : context) ++counts[static_cast<size_t>(token)];
  std::vector<float> probs(kVocab);
  uint32_t allowed = 0;
  ops::SampleRow row;
  row.logits = logits.data();
  row.slot = &slot;
  row.history = {context.data(), static_cast<int32_t>(context.size()), static_cast<int32_t>(prompt),
                 counts.data()};
  row.probs = probs.data();
  if (request.constraint) {
    allowed = ~0u;
    request.constraint->Clone()->FillMask(&context.back(), 1, &allowed);
    row.allowed = &allowed;
  }
  ops::SampledToken drawn;
  TestBackend().ops().Sample(std::span(&row, 1), kVocab, std::span(&drawn, 1));
  for (int32_t token = 0; token < kVocab; ++token) {
    const double p = static_cast<double>(probs[static_cast<size_t>(token)]);
    if (p <= 0.0) continue;
    context.push_back(token);
    AddLaw(model, request, context, probability * p, law);
    context.pop_back();
  }
}

// On a device nothing is drafted under a constraint.
bool Drafts(const Request& request) {
  return request.constraint == nullptr || TestExecutor() == ExecutorKind::kHost;
}

Law ExactLaw(const TestSetup& setup, const Request& request) {
  const FormulaPass target(setup.target, 1);
  Law law;
  std::vector<int32_t> context = request.prompt;
  AddLaw(target, request, context, 1.0, law);
  return law;
}

struct Count {
  int32_t draws = 0;
  std::map<std::vector<int32_t>, int64_t> outputs;
  EngineStats stats;
};

Count Draw(const TestSetup& setup, const Request& request, int32_t draws = kDraws) {
  FakeClock clock;
  const auto engine = MakeTestEngine(setup, clock);
  Count count;
  count.draws = draws;
  for (int32_t first = 0; first < draws; first += kWave) {
    std::vector<Request> requests(kWave, request);
    for (int32_t i = 0; i < kWave; ++i) {
      requests[static_cast<size_t>(i)].seed = static_cast<uint64_t>(first + i);
    }
    for (const std::vector<Output>& outputs : RunRequests(*engine, requests)) {
      ++count.outputs[outputs[0].tokens];
    }
  }
  count.stats = engine->Stats();
  return count;
}

// (chi-square - its mean) / its standard deviation, over cells of at least five expected draws; the
// rest is one cell.
double Deviation(const Law& law, const Count& count) {
  double chi_square = 0.0, rest_expected = 0.0;
  int64_t cells = 0, rest = count.draws;
  for (const auto& [tokens, probability] : law) {
    const double expected = probability * count.draws;
    if (expected < 5.0) {
      rest_expected += expected;
      continue;
    }
    const auto found = count.outputs.find(tokens);
    const int64_t drawn = found == count.outputs.end() ? 0 : found->second;
    rest -= drawn;
    const double difference = static_cast<double>(drawn) - expected;
    chi_square += difference * difference / expected;
    ++cells;
  }
  if (rest_expected < 1e-3 && rest > 0) return 1e9;  // an output that cannot be
  if (rest_expected >= 5.0) {
    const double difference = static_cast<double>(rest) - rest_expected;
    chi_square += difference * difference / rest_expected;
    ++cells;
  }
  const auto freedom = static_cast<double>(cells - 1);
  return (chi_square - freedom) / std::sqrt(2.0 * freedom);
}

constexpr double kHolds = 5.0;  // one in a million, were the law right

struct LawCase {
  std::string name;
  std::function<void(Request&)> set;
};

class AcceptanceLawTest : public testing::TestWithParam<LawCase> {
 protected:
  static Request MakeRequest() {
    Request request = SimpleRequest({1, 3, 2}, kTokens);
    request.sampling.temperature = 1.0f;
    GetParam().set(request);
    return request;
  }
};

TEST_P(AcceptanceLawTest, RatioModeFollowsTheTarget) {
  TestSetup setup = SmallVocabulary();
  setup.options.ratio_acceptance = true;
  const Request request = MakeRequest();
  const Count count = Draw(setup, request);
  EXPECT_EQ(count.stats.drafts_proposed > kDraws, Drafts(request));
  EXPECT_EQ(count.stats.drafts_accepted > 0, Drafts(request));
  EXPECT_LT(Deviation(ExactLaw(setup, request), count), kHolds);
}

TEST_P(AcceptanceLawTest, TokenMatchFollowsTheTarget) {
  const TestSetup setup = SmallVocabulary();
  const Request request = MakeRequest();
  const Count count = Draw(setup, request);
  EXPECT_EQ(count.stats.drafts_accepted > 0, Drafts(request));
  EXPECT_LT(Deviation(ExactLaw(setup, request), count), kHolds);
}

INSTANTIATE_TEST_SUITE_P(
    Options, AcceptanceLawTest,
    testing::Values(LawCase{"plain", [](Request&) {}},
                    LawCase{"temperature_and_top_k",
                            [](Request& r) {
                              r.sampling.temperature = 1.4f;
                              r.sampling.top_k = 4;
                            }},
                    LawCase{"top_p", [](Request& r) { r.sampling.top_p = 0.8f; }},
                    LawCase{"penalties",
                            [](Request& r) {
                              r.sampling.repetition_penalty = 1.5f;
                              r.sampling.frequency_penalty = 0.4f;
                            }},
                    LawCase{"mask",
                            [](Request& r) { r.constraint = std::make_shared<NoTwins>(); }}),
    [](const testing::TestParamInfo<LawCase>& info) { return info.param.name; });

// The sampling ops of another backend, for a test to change one of.
class ForwardingOps : public ops::SamplingOnlyOps {
 public:
  explicit ForwardingOps(ops::Ops& ops) : ops_(ops) {}
  void VerifyAndAccept(std::span<const ops::VerifyRow> rows, int64_t vocab) override {
    ops_.VerifyAndAccept(rows, vocab);
  }
  void Sample(std::span<const ops::SampleRow> rows, int64_t vocab,
              std::span<ops::SampledToken> out) override {
    ops_.Sample(rows, vocab, out);
  }
  void CopyBlock(const ops::KvPool& pool, int32_t from, int32_t to, int32_t tokens) override {
    ops_.CopyBlock(pool, from, to, tokens);
  }

 protected:
  ops::Ops& ops_;
};

// An acceptance that believes drafts were half as likely as they were.
class BiasedOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void VerifyAndAccept(std::span<const ops::VerifyRow> rows, int64_t vocab) override {
    for (ops::VerifyRow row : rows) {
      std::vector<float> halved(row.draft_probs, row.draft_probs + row.num_draft * vocab);
      for (float& q : halved) q *= 0.5f;
      row.draft_probs = halved.data();
      ops_.VerifyAndAccept({&row, 1}, vocab);
    }
  }
};

// How a draft is drawn in place of the request's own way.
struct DraftFilter {
  ops::SamplingParams params;
  uint32_t allowed = ~0u;  // tokens
};

// Draws drafts through a filter of their own, so that a draft may be drawn that the target would
// never draw, and the other way round. The rows of drafts are those that want no log-probability:
// the request has to ask for it.
class DraftFilterOps final : public ForwardingOps {
 public:
  DraftFilterOps(ops::Ops& ops, const DraftFilter& filter, bool tells_the_truth)
      : ForwardingOps(ops), filter_(filter), tells_the_truth_(tells_the_truth) {}
  void Sample(std::span<const ops::SampleRow> rows, int64_t vocab,
              std::span<ops::SampledToken> out) override {
    for (size_t i = 0; i < rows.size(); ++i) SampleOne(rows[i], vocab, out[i]);
  }

 private:
  void SampleOne(const ops::SampleRow& row, int64_t vocab, ops::SampledToken& out) {
    if (row.slot->params.num_top_logprobs >= 0) {
      ops_.Sample({&row, 1}, vocab, {&out, 1});
      return;
    }
    ops::SlotSampling slot = *row.slot;
    slot.params = filter_.params;
    slot.params.num_top_logprobs = -1;
    slot.params.seed = row.slot->params.seed;
    ops::SampleRow filtered = row;
    filtered.slot = &slot;
    filtered.allowed = &filter_.allowed;
    ops_.Sample({&filtered, 1}, vocab, {&out, 1});
    // The lie: what the draft would have been drawn from by the request's own filters.
    ops::SampledToken unused;
    if (!tells_the_truth_) ops_.Sample({&row, 1}, vocab, {&unused, 1});
  }

  const DraftFilter filter_;
  const bool tells_the_truth_;
};

struct TwoFilters {
  std::string name;
  std::function<void(Request&)> target;
  std::function<void(DraftFilter&)> draft;
};

class UnequalFiltersTest : public testing::TestWithParam<TwoFilters> {
 protected:
  void SetUp() override {
    if (TestExecutor() == ExecutorKind::kDevice)
      GTEST_SKIP() << "ops of a test's own are the host's";
  }
  // Of the drawn outputs against the target's law.
  static double DeviationWith(bool tells_the_truth) {
    DraftFilter filter;
    GetParam().draft(filter);
    DraftFilterOps ops(TestBackend().ops(), filter, tells_the_truth);
    TestSetup setup = SmallVocabulary();
    setup.options.ratio_acceptance = true;
    setup.ops = &ops;
    Request request = SimpleRequest({1, 3, 2}, kTokens);
    request.sampling.temperature = 1.0f;
    request.sampling.num_top_logprobs = 0;
    GetParam().target(request);
    const Count count = Draw(setup, request, tells_the_truth ? kDraws : kControlDraws);
    EXPECT_GT(count.stats.drafts_accepted, 0);
    EXPECT_LT(count.stats.drafts_accepted, count.stats.drafts_proposed);
    return Deviation(ExactLaw(setup, request), count);
  }
};

TEST_P(UnequalFiltersTest, TheTargetsLawHolds) { EXPECT_LT(DeviationWith(true), kHolds); }

TEST_P(UnequalFiltersTest, AnUntrueDraftDistributionIsFoundOut) {
  EXPECT_GT(DeviationWith(false), kHolds);
}

INSTANTIATE_TEST_SUITE_P(Options, UnequalFiltersTest,
                         testing::Values(TwoFilters{"narrow_target",
                                                    [](Request& r) {
                                                      r.sampling.temperature = 0.8f;
                                                      r.sampling.top_k = 4;
                                                      r.sampling.top_p = 0.9f;
                                                      r.sampling.repetition_penalty = 1.3f;
                                                      r.constraint = std::make_shared<NoTwins>();
                                                    },
                                                    [](DraftFilter& d) {
                                                      d.params.temperature = 1.5f;
                                                      d.params.presence_penalty = 0.7f;
                                                    }},
                                         TwoFilters{"narrow_draft",
                                                    [](Request& r) {
                                                      r.sampling.temperature = 1.4f;
                                                      r.sampling.frequency_penalty = 0.4f;
                                                    },
                                                    [](DraftFilter& d) {
                                                      d.params.temperature = 0.6f;
                                                      d.params.top_k = 3;
                                                      d.params.top_p = 0.8f;
                                                      d.params.repetition_penalty = 1.5f;
                                                      d.allowed = 0b11011;
                                                    }}),
                         [](const testing::TestParamInfo<TwoFilters>& info) {
                           return info.param.name;
                         });

TEST(AcceptanceLaw, ABiasedRuleIsFoundOut) {
  BiasedOps biased(TestBackend().ops());
  TestSetup setup = SmallVocabulary();
  setup.options.ratio_acceptance = true;
  setup.ops = &biased;
  Request request = SimpleRequest({1, 3, 2}, kTokens);
  request.sampling.temperature = 1.0f;
  EXPECT_GT(Deviation(ExactLaw(setup, request), Draw(setup, request, kControlDraws)), kHolds);
}

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
  const double ratio = AcceptanceRate(true);
  EXPECT_GT(ratio, 0.5);
  EXPECT_GE(AcceptanceRate(false), 0.9 * ratio);
}

}  // namespace
}  // namespace tandem
