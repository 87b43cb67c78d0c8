// What speculation emits follows the target's law: the joint distribution of k + 2 tokens, counted
// over many seeds, against the exact one, in both modes of acceptance; and how often drafts hold in
// each.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "model/decoder_test_driver.h"
#include "model/kv_pool.h"
#include "ops/testing/forwarding_backend.h"
#include "ops/testing/sampling_only_ops.h"
#include "runtime/test_engine.h"
#include "runtime/test_llama.h"

namespace tandem {
namespace {

constexpr int64_t kVocab = 5;
constexpr int32_t kDrafts = 2;
constexpr int32_t kTokens = kDrafts + 2;
constexpr int32_t kDraws = 100000;
constexpr int32_t kControlDraws = 20000;  // enough to find a wrong law out

// Where the logits come from: formulas, which the host computes, or a tiny pair of Llamas on the
// test's backend.
enum class Models : uint8_t { kFormulas, kLlamas };

std::vector<Models> ModelsHere() {
  if (TestOnCuda()) return {Models::kLlamas};
  if (TestExecutor() == ExecutorKind::kDevice) return {Models::kFormulas, Models::kLlamas};
  return {Models::kFormulas};
}

// Fewer where a CPU computes Llamas.
int32_t DrawsOf(Models models) {
  return models == Models::kLlamas && !TestOnCuda() ? kControlDraws : kDraws;
}

std::string Name(Models models) { return models == Models::kFormulas ? "formulas" : "llamas"; }

struct LlamaPair {
  EngineModel target, draft;
};

const LlamaPair& Llamas() {
  static const LlamaPair pair = [] {
    ModelSpec spec = TinyLlamaSpec(DType::kBF16, 64);
    spec.vocab_size = kVocab;
    return LlamaPair{MakeTinyLlama(spec, 5, 0.0f, TestBackend()),
                     MakeTinyLlama(spec, 5, 0.5f, TestBackend())};
  }();
  return pair;
}

std::unique_ptr<ForwardPass> MakePass(const EngineModel& model, const EngineOptions& options,
                                      int32_t max_logits_rows) {
  return std::make_unique<DecoderPass>(
      Decoder::Create(model.weights, TestBackend(), options.max_num_tokens, max_logits_rows)
          .value());
}

ops::KvPool MakePool(const ModelSpec& spec, const TestSetup& setup, std::vector<Buffer>& memory) {
  OwnedKvPool owned =
      MakeKvPool(spec, spec.dtype, setup.num_blocks, setup.options.block_tokens, TestBackend())
          .value();
  memory.push_back(std::move(owned.memory));
  return owned.pool;
}

ExecutorModels MakeLlamas(const TestSetup& setup, const SchedulerLimits& limits) {
  const auto& [target, draft] = Llamas();
  ExecutorModels models;
  models.target = MakePass(target, setup.options, limits.max_logits_rows);
  models.draft = MakePass(draft, setup.options, setup.options.max_batch_size);
  models.target_pool = MakePool(target.weights->spec, setup, models.memory);
  models.draft_pool = MakePool(draft.weights->spec, setup, models.memory);
  return models;
}

TestSetup SmallVocabulary(Models models) {
  TestSetup setup;
  setup.options = SmallOptions();
  setup.options.max_batch_size = 64;
  setup.options.max_num_tokens = 512;
  setup.options.max_queue_size = 1000;
  setup.options.draft_mode = DraftMode::kFixed;
  setup.options.fixed_draft_len = kDrafts;
  setup.options.max_draft_len = kDrafts;
  setup.target = {.vocab = kVocab, .share = 1.0, .scale = 3.0f};
  setup.draft = {.vocab = kVocab, .share = 0.5, .scale = 3.0f};
  if (models == Models::kLlamas) {
    // All requests of a wave start in one step, so that the steps behind it are replayed graphs.
    setup.options.max_batch_size = 256;
    setup.options.max_num_tokens = 1024;
    setup.options.max_queue_size = 256;
    setup.options.block_tokens = 16;
    setup.make_models = [setup](const SchedulerLimits& limits) {
      return MakeLlamas(setup, limits);
    };
  }
  return setup;
}

// The target's logits behind a context, alone: what the backend gives it in any batch.
std::vector<float> TargetLogits(const TestSetup& setup, const std::vector<int32_t>& context) {
  if (!setup.make_models) return FormulaPass(setup.target, 1).Logits(context);
  return DecoderTestDriver(Llamas().target.weights, TestBackend(), 16).Feed(context).back();
}

// What says how options filter a distribution, wherever the logits come from.
ops::Ops& HostSampler() {
  static const std::unique_ptr<ops::Backend> backend =
      ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false, .isa = "scalar"}).value();
  return backend->ops();
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
void AddLaw(const TestSetup& setup, const Request& request, std::vector<int32_t>& context,
            double probability, Law& law) {
  const size_t prompt = request.prompt.size();
  if (context.size() == prompt + kTokens) {
    law[{context.begin() + static_cast<ptrdiff_t>(prompt), context.end()}] = probability;
    return;
  }
  const std::vector<float> logits = TargetLogits(setup, context);
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
  HostSampler().Sample(std::span(&row, 1), kVocab, std::span(&drawn, 1));
  for (int32_t token = 0; token < kVocab; ++token) {
    const double p = static_cast<double>(probs[static_cast<size_t>(token)]);
    if (p <= 0.0) continue;
    context.push_back(token);
    AddLaw(setup, request, context, probability * p, law);
    context.pop_back();
  }
}

// On a device nothing is drafted under a constraint.
bool Drafts(const Request& request) {
  return request.constraint == nullptr || TestExecutor() == ExecutorKind::kHost;
}

Law ExactLaw(const TestSetup& setup, const Request& request) {
  Law law;
  std::vector<int32_t> context = request.prompt;
  AddLaw(setup, request, context, 1.0, law);
  return law;
}

struct Count {
  int32_t draws = 0;
  std::map<std::vector<int32_t>, int64_t> outputs;
  EngineStats stats;
};

Count Draw(const TestSetup& setup, const Request& request, int32_t draws) {
  FakeClock clock;
  const auto engine = MakeTestEngine(setup, clock);
  Count count;
  while (count.draws < draws) {
    std::vector<Request> requests(static_cast<size_t>(setup.options.max_queue_size), request);
    for (Request& one : requests) one.seed = static_cast<uint64_t>(count.draws++);
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

// How far the drawn outputs are from the target's law; told, for the record.
double Measure(const TestSetup& setup, const Request& request, const Count& count) {
  const double deviation = Deviation(ExactLaw(setup, request), count);
  const EngineStats& stats = count.stats;
  std::cout << count.draws << " draws, " << stats.drafts_accepted << " of " << stats.drafts_proposed
            << " drafts accepted: chi-square " << deviation << " deviations from its mean\n";
  return deviation;
}

class AcceptanceLawTest : public testing::TestWithParam<std::tuple<Models, LawCase>> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  static Request MakeRequest() {
    Request request = SimpleRequest({1, 3, 2}, kTokens);
    request.sampling.temperature = 1.0f;
    std::get<1>(GetParam()).set(request);
    return request;
  }
};

TEST_P(AcceptanceLawTest, RatioModeFollowsTheTarget) {
  TestSetup setup = SmallVocabulary(std::get<0>(GetParam()));
  setup.options.ratio_acceptance = true;
  const Request request = MakeRequest();
  const Count count = Draw(setup, request, DrawsOf(std::get<0>(GetParam())));
  EXPECT_EQ(count.stats.drafts_proposed > count.draws, Drafts(request));
  EXPECT_EQ(count.stats.drafts_accepted > 0, Drafts(request));
  EXPECT_LT(Measure(setup, request, count), kHolds);
}

TEST_P(AcceptanceLawTest, TokenMatchFollowsTheTarget) {
  const TestSetup setup = SmallVocabulary(std::get<0>(GetParam()));
  const Request request = MakeRequest();
  const Count count = Draw(setup, request, DrawsOf(std::get<0>(GetParam())));
  EXPECT_EQ(count.stats.drafts_accepted > 0, Drafts(request));
  EXPECT_LT(Measure(setup, request, count), kHolds);
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
                         testing::Combine(testing::ValuesIn(ModelsHere()),
                                          testing::ValuesIn(kLawCases)),
                         [](const testing::TestParamInfo<std::tuple<Models, LawCase>>& info) {
                           return std::get<1>(info.param).name + "_" +
                                  Name(std::get<0>(info.param));
                         });

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

// An acceptance that is told that drafts were drawn from all tokens alike.
class AllAlikeRound : public ops::ForwardingRoundOps {
 public:
  AllAlikeRound(ops::Backend& backend, const EngineOptions& options)
      : ForwardingRoundOps(backend.round()) {
    const std::vector<float> alike(
        static_cast<size_t>(options.max_batch_size * options.max_draft_len * kVocab),
        1.0f / kVocab);
    const size_t bytes = alike.size() * sizeof(float);
    alike_ = backend.Allocate(bytes).value();
    backend.CopyToDevice(alike_.data(), alike.data(), bytes);
  }
  void LayVerifyRows(const ops::Round& round, const ops::PassBounds& bounds) override {
    ops::Round told = round;
    told.draft_probs = alike_.As<float>();
    inner_.LayVerifyRows(told, bounds);
  }

 private:
  Buffer alike_;  // [rows, kVocab]
};

// Accepts by a wrong rule, the executor's own kind of.
class BiasedBackend final : public ops::ForwardingBackend {
 public:
  BiasedBackend(ops::Backend& inner, const EngineOptions& options)
      : ForwardingBackend(inner), ops_(inner.ops()), round_(inner, options) {}
  ops::Ops& ops() override {
    if (TestExecutor() == ExecutorKind::kHost) return ops_;
    return inner_.ops();
  }
  ops::RoundOps& round() override { return round_; }

 private:
  BiasedOps ops_;
  AllAlikeRound round_;
};

// How a draft is drawn in place of the request's own way.
struct DraftFilter {
  ops::SamplingParams params;
  int32_t forbidden = -1;  // a token

  ops::SlotSampling Of(const ops::SlotSampling& request, const int32_t* id,
                       const float* bias) const {
    ops::SlotSampling slot = request;
    slot.params = params;
    slot.params.num_top_logprobs = -1;
    slot.params.seed = request.params.seed;
    slot.bias_ids = id;
    slot.bias_values = bias;
    slot.num_bias = forbidden < 0 ? 0 : 1;
    return slot;
  }
};
constexpr float kNever = -1e4f;  // a bias

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
    const ops::SlotSampling slot = filter_.Of(*row.slot, &filter_.forbidden, &kNever);
    ops::SampleRow filtered = row;
    filtered.slot = &slot;
    filtered.allowed = nullptr;
    ops_.Sample({&filtered, 1}, vocab, {&out, 1});
    // The lie: what the draft would have been drawn from by the request's own filters.
    ops::SampledToken unused;
    if (!tells_the_truth_) ops_.Sample({&row, 1}, vocab, {&unused, 1});
  }

  const DraftFilter filter_;
  const bool tells_the_truth_;
};

// The same where the slots lie on a device: their records of how drafts are drawn are changed
// there.
class DraftFilterRound final : public AllAlikeRound {
 public:
  DraftFilterRound(ops::Backend& backend, const EngineOptions& options, const DraftFilter& filter,
                   bool tells_the_truth)
      : AllAlikeRound(backend, options),
        backend_(backend),
        filter_(filter),
        tells_the_truth_(tells_the_truth),
        forbidden_(backend.Allocate(sizeof(int32_t)).value()),
        never_(backend.Allocate(sizeof(float)).value()) {
    backend.CopyToDevice(forbidden_.data(), &filter.forbidden, sizeof(int32_t));
    backend.CopyToDevice(never_.data(), &kNever, sizeof(float));
  }
  void StartSlot(const ops::SlotArrays& slots, const ops::SlotPatch* patch) override {
    inner_.StartSlot(slots, patch);
    ops::SlotPatch started;
    backend_.CopyToHost(&started, patch, sizeof(started));
    const ops::SlotSampling draft =
        filter_.Of(started.sampling, forbidden_.As<int32_t>(), never_.As<float>());
    backend_.CopyToDevice(slots.draft_sampling + started.slot, &draft, sizeof(draft));
  }
  void LayVerifyRows(const ops::Round& round, const ops::PassBounds& bounds) override {
    if (tells_the_truth_) {
      inner_.LayVerifyRows(round, bounds);
    } else {
      AllAlikeRound::LayVerifyRows(round, bounds);
    }
  }

 private:
  ops::Backend& backend_;
  const DraftFilter filter_;
  const bool tells_the_truth_;
  Buffer forbidden_, never_;
};

class DraftFilterBackend final : public ops::ForwardingBackend {
 public:
  DraftFilterBackend(ops::Backend& inner, const EngineOptions& options, const DraftFilter& filter,
                     bool tells_the_truth)
      : ForwardingBackend(inner),
        ops_(inner.ops(), filter, tells_the_truth),
        round_(inner, options, filter, tells_the_truth) {}
  ops::Ops& ops() override {
    if (TestExecutor() == ExecutorKind::kHost) return ops_;
    return inner_.ops();
  }
  ops::RoundOps& round() override { return round_; }

 private:
  DraftFilterOps ops_;
  DraftFilterRound round_;
};

struct TwoFilters {
  std::string name;
  std::function<void(Request&)> target;
  std::function<void(DraftFilter&)> draft;
};

class UnequalFiltersTest : public testing::TestWithParam<std::tuple<Models, TwoFilters>> {
 protected:
  void SetUp() override {
    if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  }
  // Of the drawn outputs against the target's law.
  static double DeviationWith(bool tells_the_truth) {
    const auto& [models, filters] = GetParam();
    DraftFilter filter;
    filters.draft(filter);
    TestSetup setup = SmallVocabulary(models);
    setup.options.ratio_acceptance = true;
    DraftFilterBackend backend(TestBackend(), setup.options, filter, tells_the_truth);
    setup.backend = &backend;
    Request request = SimpleRequest({1, 3, 2}, kTokens);
    request.sampling.temperature = 1.0f;
    request.sampling.num_top_logprobs = 0;
    filters.target(request);
    if (!Drafts(request)) request.constraint = nullptr;
    const Count count = Draw(setup, request, tells_the_truth ? DrawsOf(models) : kControlDraws);
    EXPECT_GT(count.stats.drafts_accepted, 0);
    EXPECT_LT(count.stats.drafts_accepted, count.stats.drafts_proposed);
    return Measure(setup, request, count);
  }
};

TEST_P(UnequalFiltersTest, TheTargetsLawHolds) { EXPECT_LT(DeviationWith(true), kHolds); }

TEST_P(UnequalFiltersTest, AnUntrueDraftDistributionIsFoundOut) {
  EXPECT_GT(DeviationWith(false), kHolds);
}

const TwoFilters kTwoFilters[] = {{"narrow_target",
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
                                  {"narrow_draft",
                                   [](Request& r) {
                                     r.sampling.temperature = 1.4f;
                                     r.sampling.frequency_penalty = 0.4f;
                                   },
                                   [](DraftFilter& d) {
                                     d.params.temperature = 0.6f;
                                     d.params.top_k = 3;
                                     d.params.top_p = 0.8f;
                                     d.params.repetition_penalty = 1.5f;
                                     d.forbidden = 2;
                                   }}};

INSTANTIATE_TEST_SUITE_P(Options, UnequalFiltersTest,
                         testing::Combine(testing::ValuesIn(ModelsHere()),
                                          testing::ValuesIn(kTwoFilters)),
                         [](const testing::TestParamInfo<std::tuple<Models, TwoFilters>>& info) {
                           return std::get<1>(info.param).name + "_" +
                                  Name(std::get<0>(info.param));
                         });

class BiasedRuleTest : public testing::TestWithParam<Models> {};

TEST_P(BiasedRuleTest, IsFoundOut) {
  if (!HasTestBackend()) GTEST_SKIP() << "no GPU here";
  TestSetup setup = SmallVocabulary(GetParam());
  setup.options.ratio_acceptance = true;
  BiasedBackend biased(TestBackend(), setup.options);
  setup.backend = &biased;
  Request request = SimpleRequest({1, 3, 2}, kTokens);
  request.sampling.temperature = 1.0f;
  EXPECT_GT(Measure(setup, request, Draw(setup, request, kControlDraws)), kHolds);
}

INSTANTIATE_TEST_SUITE_P(Models, BiasedRuleTest, testing::ValuesIn(ModelsHere()),
                         [](const testing::TestParamInfo<Models>& info) {
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
