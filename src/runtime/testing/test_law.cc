#include "runtime/testing/test_law.h"

#include <iostream>
#include <utility>

#include "model/testing/decoder_driver.h"
#include "ops/testing/chi_square.h"
#include "runtime/engine_plan.h"
#include "runtime/testing/test_llama.h"

namespace tandem {
namespace {

constexpr int64_t kVocab = 5;
constexpr int32_t kDrafts = 2;
constexpr int32_t kTokens = kDrafts + 2;
constexpr int32_t kDraws = 100000 / kFewerDraws;

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

// The target's logits after a context, computed alone: the backend gives the same in any batch.
std::vector<float> TargetLogits(const TestSetup& setup, const std::vector<int32_t>& context) {
  if (!setup.make_models) return FormulaPass(setup.target, 1).Logits(context);
  return DecoderTestDriver(Llamas().target.weights, TestBackend(), 16).Feed(context).back();
}

// The ops that filter a distribution according to the options, wherever the logits come from.
ops::Ops& HostSampler() {
  static const std::unique_ptr<ops::Backend> backend =
      ops::MakeCpuBackend({.num_threads = 1, .pin_threads = false, .isa = "scalar"}).value();
  return backend->ops();
}

using Law = std::map<std::vector<int32_t>, double>;  // probability of the kTokens tokens

// The exact law, from the sampler's own filtered distribution after every possible prefix.
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
    request.constraint->Clone()->FillMask(std::span(context).last(1), std::span(&allowed, 1));
    row.allowed = &allowed;
  }
  SampledToken drawn;
  HostSampler().Sample(std::span(&row, 1), kVocab, std::span(&drawn, 1));
  for (int32_t token = 0; token < kVocab; ++token) {
    const double p = static_cast<double>(probs[static_cast<size_t>(token)]);
    if (p <= 0.0) continue;
    context.push_back(token);
    AddLaw(setup, request, context, probability * p, law);
    context.pop_back();
  }
}

Law ExactLaw(const TestSetup& setup, const Request& request) {
  Law law;
  std::vector<int32_t> context = request.prompt;
  AddLaw(setup, request, context, 1.0, law);
  return law;
}

// Compares counts with a law: one cell per output, including impossible ones that occurred.
double Deviation(Law law, const Drawn& drawn) {
  for (const auto& [tokens, times] : drawn.outputs) law.try_emplace(tokens, 0.0);
  std::vector<int64_t> counts;
  std::vector<double> probabilities;
  for (const auto& [tokens, probability] : law) {
    const auto found = drawn.outputs.find(tokens);
    counts.push_back(found == drawn.outputs.end() ? 0 : found->second);
    probabilities.push_back(probability);
  }
  return ops::ChiSquareZ(counts, probabilities);
}

}  // namespace

std::string Name(LawModels models) {
  return models == LawModels::kFormulas ? "formulas" : "llamas";
}

std::vector<LawModels> LawModelsHere() {
  if (TestOnCuda()) return {LawModels::kLlamas};
  if (TestExecutor() == ExecutorKind::kDevice) return {LawModels::kFormulas, LawModels::kLlamas};
  return {LawModels::kFormulas};
}

int32_t DrawsOf(LawModels models) {
  return models == LawModels::kLlamas && !TestOnCuda() ? kControlDraws : kDraws;
}

TestSetup LawSetup(LawModels models) {
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
  if (models == LawModels::kLlamas) {
    // All requests of a wave start in one step, so that later steps are replayed graphs.
    setup.options.max_batch_size = 256;
    setup.options.max_num_tokens = 1024;
    setup.options.max_queue_size = 256;
    setup.options.block_tokens = 16;
    setup.make_models = [setup](const SchedulerLimits& limits) {
      return MakeModels(Llamas().target, Llamas().draft, setup, limits);
    };
  }
  return setup;
}

Request LawRequest() {
  Request request = SimpleRequest({1, 3, 2}, kTokens);
  request.sampling.temperature = 1.0f;
  return request;
}

bool Drafts(const TestSetup& setup, const Request& request) {
  return request.constraint == nullptr || DraftsConstrained(setup.options, TestBackend());
}

void NoTwins::FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) {
  const int32_t last = ahead.empty() ? last_ : ahead.back();
  allowed[0] &= ~(1u << last);
}

void NoTwins::Commit(const int32_t* tokens, int32_t num_tokens) { last_ = tokens[num_tokens - 1]; }

std::unique_ptr<TokenConstraint> NoTwins::Clone() const { return std::make_unique<NoTwins>(*this); }

Drawn Draw(const TestSetup& setup, const Request& request, int32_t draws,
           const std::function<void(Request&)>& prepare) {
  FakeClock clock;
  const auto engine = MakeTestEngine(setup, clock);
  Drawn drawn;
  while (drawn.draws < draws) {
    std::vector<Request> requests(static_cast<size_t>(setup.options.max_queue_size), request);
    for (Request& one : requests) {
      one.seed = static_cast<uint64_t>(drawn.draws++);
      if (prepare) prepare(one);
    }
    for (const std::vector<Output>& outputs : RunRequests(*engine, requests)) {
      ++drawn.outputs[outputs[0].tokens];
    }
  }
  drawn.stats = engine->Stats();
  return drawn;
}

// The token at which the running sum of `probs` passes the number that the stream has there.
int32_t DrawByStream(const std::vector<float>& probs, const Request& request, size_t position,
                     ops::NoiseStream stream) {
  double rest = ops::UniformDouble(stream, *request.seed, 0, static_cast<int32_t>(position));
  size_t token = 0;
  while (token + 1 < probs.size() && rest >= static_cast<double>(probs[token])) {
    rest -= static_cast<double>(probs[token++]);
  }
  return static_cast<int32_t>(token);
}

ExternalDraft DraftAlone(const Request& request, const FormulaModel& model, int32_t num_tokens,
                         ops::NoiseStream stream) {
  ExternalDraft draft;
  std::vector<int32_t> context = request.prompt;
  std::vector<int32_t> counts(static_cast<size_t>(model.vocab));
  for (const int32_t token : context) ++counts[static_cast<size_t>(token)];
  ops::SlotSampling slot;
  slot.params = request.sampling;
  slot.params.seed = *request.seed;
  const FormulaPass pass(model, 1);
  for (int32_t i = 0; i < num_tokens; ++i) {
    const std::vector<float> logits = pass.Logits(context);
    ops::SampleRow row;
    row.logits = logits.data();
    row.slot = &slot;
    row.history = {context.data(), static_cast<int32_t>(context.size()),
                   static_cast<int32_t>(request.prompt.size()), counts.data()};
    std::vector<float> probs(static_cast<size_t>(model.vocab));
    row.probs = probs.data();
    SampledToken drawn;
    HostSampler().Sample(std::span(&row, 1), model.vocab, std::span(&drawn, 1));
    if (stream != ops::NoiseStream::kToken) {
      drawn.token = DrawByStream(probs, request, context.size(), stream);
    }
    draft.tokens.push_back(drawn.token);
    draft.logits.insert(draft.logits.end(), logits.begin(), logits.end());
    context.push_back(drawn.token);
    ++counts[static_cast<size_t>(drawn.token)];
  }
  return draft;
}

double Measure(const TestSetup& setup, const Request& request, const Drawn& drawn) {
  const double deviation = Deviation(ExactLaw(setup, request), drawn);
  const EngineStats& stats = drawn.stats;
  std::cout << drawn.draws << " draws, " << stats.drafts_accepted << " of " << stats.drafts_proposed
            << " drafts accepted: " << deviation << " deviations from the law\n";
  return deviation;
}

AllAlikeRound::AllAlikeRound(ops::Backend& backend, const EngineOptions& options)
    : ForwardingRoundOps(backend.round()) {
  const std::vector<float> alike(
      static_cast<size_t>(options.max_batch_size * (options.max_draft_len + 1) * kVocab),
      1.0f / kVocab);
  const size_t bytes = alike.size() * sizeof(float);
  alike_ = backend.Allocate(bytes).value();
  backend.CopyToDevice(alike_.data(), alike.data(), bytes);
}

void AllAlikeRound::LayVerifyRows(const ops::Round& round, const ops::PassBounds& bounds) {
  ops::Round told = round;
  told.draft_probs = alike_.As<float>();
  inner_.LayVerifyRows(told, bounds);
}

}  // namespace tandem
