#include "runtime/testing/test_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "model/decoder/decoder.h"
#include "model/kv_pool.h"
#include "runtime/engine_plan.h"
#include "runtime/execution/rehearsal.h"
#include "runtime/execution/round_executor.h"

namespace tandem {
namespace {

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t Extend(uint64_t hash, int32_t token) { return Mix(hash ^ static_cast<uint64_t>(token)); }

double Unit(uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

// One layer, one head of one element: a block holds its tokens and the same number of unused
// values.
ops::KvPool MakePool(int32_t num_blocks, int32_t block_tokens, std::vector<Buffer>& memory) {
  ops::KvGroup group;
  group.num_blocks = num_blocks;
  group.num_layers = 1;
  group.num_kv_heads = 1;
  group.block_tokens = block_tokens;
  group.head_dim = 1;
  const int64_t elements = num_blocks * group.elements_per_block();
  memory.push_back(Buffer::OnHost(static_cast<size_t>(elements) * sizeof(int32_t)));
  group.data = memory.back().View(DType::kF32, {elements});
  return {.groups = {group}, .layers = {{}}};
}

ExecutorModels MakeFormulas(const TestSetup& setup, int32_t max_logits_rows, bool has_draft) {
  const EngineOptions& options = setup.options;
  ExecutorModels models;
  models.target = std::make_unique<FormulaPass>(setup.target, max_logits_rows);
  models.target_pool = MakePool(setup.num_blocks, options.block_tokens, models.memory);
  if (has_draft) {
    models.draft = std::make_unique<FormulaPass>(setup.draft, options.max_batch_size);
    models.draft_pool = MakePool(setup.num_blocks, options.block_tokens, models.memory);
  }
  return models;
}

int32_t& StoredToken(const ops::BatchView& batch, const ops::KvPool& pool, int32_t seq,
                     int32_t position) {
  const ops::KvGroup& group = pool.groups.front();
  const int32_t block = batch.block_table[seq * batch.max_blocks + position / group.block_tokens];
  return static_cast<int32_t*>(
      group.data.data)[block * group.elements_per_block() + position % group.block_tokens];
}

}  // namespace

FormulaPass::FormulaPass(const FormulaModel& model, int32_t max_logits_rows)
    : model_(model),
      logits_(static_cast<size_t>(max_logits_rows) * static_cast<size_t>(model.vocab)) {}

void FormulaPass::FillLogits(uint64_t hash, float* logits) const {
  for (int64_t token = 0; token < model_.vocab; ++token) {
    const uint64_t key = hash ^ Mix(static_cast<uint64_t>(token) + 1);
    const double value =
        model_.share * Unit(Mix(key)) + (1.0 - model_.share) * Unit(Mix(key ^ 0x5eed));
    logits[token] = model_.scale * static_cast<float>(value);
  }
}

std::vector<float> FormulaPass::Logits(std::span<const int32_t> context) const {
  uint64_t hash = 0;
  for (const int32_t token : context) hash = Extend(hash, token);
  std::vector<float> logits(static_cast<size_t>(model_.vocab));
  FillLogits(hash, logits.data());
  return logits;
}

Tensor FormulaPass::Forward(const ops::BatchView& batch, const ops::KvPool& pool) {
  for (int32_t row = 0; row < batch.num_rows; ++row) {
    TANDEM_CHECK(batch.tokens[row] < model_.vocab, "a token the model does not know");
    if (batch.row_seq[row] < 0) continue;
    StoredToken(batch, pool, batch.row_seq[row], batch.positions[row]) = batch.tokens[row];
  }
  int32_t next = 0;  // logits rows come in the order of the rows
  for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
    const int32_t rows = batch.query_start[seq + 1] - batch.query_start[seq];
    const int32_t first = batch.context_len[seq] - rows;
    uint64_t hash = 0;
    for (int32_t position = 0; position < batch.context_len[seq]; ++position) {
      hash = Extend(hash, StoredToken(batch, pool, seq, position));
      const int32_t row = batch.query_start[seq] + position - first;
      if (position < first || next >= batch.num_logits || batch.logits_rows[next] != row) continue;
      FillLogits(hash, logits_.data() + next++ * model_.vocab);
    }
  }
  // After the last real row come copies of row 0's, which nobody reads.
  for (; next < batch.num_logits; ++next) {
    TANDEM_CHECK(batch.logits_rows[next] == 0, "logits rows out of order");
  }
  return {logits_.data(), DType::kF32, {batch.num_logits, model_.vocab}, Device{}};
}

ExecutorKind TestExecutor() {
  const char* name = std::getenv("TANDEM_TEST_EXECUTOR");
  const bool device = name != nullptr && std::string_view(name) == "device";
  return device || TestOnCuda() ? ExecutorKind::kDevice : ExecutorKind::kHost;
}

EngineOptions SmallOptions() {
  EngineOptions options;
  options.max_batch_size = 8;
  options.max_num_tokens = 64;
  options.max_seq_len = 256;
  options.block_tokens = 8;
  options.draft_mode = DraftMode::kOff;
  options.seed = 7;
  options.executor = TestExecutor();
  return options;
}

bool TestOnCuda() {
  const char* name = std::getenv("TANDEM_TEST_BACKEND");
  return name != nullptr && std::string_view(name) == "cuda";
}

bool HasTestBackend() { return !TestOnCuda() || ops::NumCudaDevices() > 0; }

ops::Backend& TestBackend() {
  static const std::unique_ptr<ops::Backend> backend = [] {
    if (TestOnCuda()) return ops::MakeCudaBackend({.batch_invariant = true}).value();
    ops::CpuOptions options;
    options.num_threads = 2;
    options.pin_threads = false;
    options.isa = ops::SupportedCpuIsas().back();
    return ops::MakeCpuBackend(options).value();
  }();
  return *backend;
}

std::unique_ptr<Engine> MakeTestEngine(const TestSetup& setup, const Clock& clock) {
  const EngineOptions& options = setup.options;
  ops::Backend& backend = setup.backend != nullptr ? *setup.backend : TestBackend();
  EngineParts parts;
  parts.options = options;
  parts.vocab_size = setup.target.vocab;
  parts.kv = {.num_blocks = setup.num_blocks,
              .block_tokens = options.block_tokens,
              .enable_reuse = options.enable_prefix_reuse,
              .num_host_blocks = setup.num_host_blocks};
  const bool has_draft = options.draft_mode != DraftMode::kOff && setup.draft_model;
  parts.limits = MakeSchedulerLimits(options, has_draft ? setup.draft_max_positions : 0, backend);
  // All sequences may draft in one step, so that tests of a law see many drafts.
  parts.limits.max_logits_rows = std::max(
      parts.limits.max_logits_rows, options.max_batch_size * (1 + parts.limits.max_draft_len));
  const SchedulerLimits& limits = parts.limits;

  const CostTable::Point target[] = {{1, setup.target_seconds},
                                     {101, setup.target_seconds + 100 * setup.target_row_seconds}};
  const CostTable::Point draft[] = {{1, setup.draft_seconds}, {101, 2 * setup.draft_seconds}};
  parts.costs.Set(ModelIndex::kTarget, target);
  if (has_draft) parts.costs.Set(ModelIndex::kDraft, draft);

  ExecutorModels models = setup.make_models
                              ? setup.make_models(limits)
                              : MakeFormulas(setup, limits.max_logits_rows, has_draft);
  if (setup.num_host_blocks > 0) {
    models.host_blocks =
        HostBlocks::Create(setup.num_host_blocks, models.target_pool, models.draft_pool, backend)
            .value();
  }
  if (setup.wrap_pass) models.target = setup.wrap_pass(std::move(models.target));
  if (setup.wrap_pass && models.draft) models.draft = setup.wrap_pass(std::move(models.draft));
  ExecutorConfig config = MakeExecutorConfig(options, limits, backend);
  config.mask_patience = setup.mask_patience.value_or(config.mask_patience);
  config.long_mask_patience = setup.long_mask_patience;
  parts.executor = RoundExecutor::Create(config, backend, std::move(models), clock).value();
  if (setup.rehearse) {
    const RehearsalScope scope = {.num_blocks = setup.num_blocks,
                                  .vocab = setup.target.vocab,
                                  .draft_model = has_draft,
                                  .draft_max_positions = setup.draft_max_positions};
    CostTable measured;
    const Turn turn(nullptr);
    EXPECT_TRUE(Rehearse(*parts.executor, config, scope, clock, turn, &measured).ok());
  }
  if (setup.wrap_executor) parts.executor = setup.wrap_executor(std::move(parts.executor));
  parts.events = setup.events;
  return Engine::FromParts(std::move(parts), clock);
}

ExecutorModels MakeModels(const EngineModel& target, const EngineModel& draft,
                          const TestSetup& setup, const SchedulerLimits& limits) {
  const EngineOptions& options = setup.options;
  const auto pass = [&](const EngineModel& model, int32_t max_logits_rows) {
    return std::make_unique<DecoderPass>(
        Decoder::Create(model.weights, TestBackend(), options.max_num_tokens, max_logits_rows)
            .value());
  };
  ExecutorModels models;
  const auto pool = [&](const ModelSpec& spec) {
    OwnedKvPool owned =
        MakeKvPool(spec, spec.dtype, setup.num_blocks, options.block_tokens, TestBackend()).value();
    for (Buffer& memory : owned.memory) models.memory.push_back(std::move(memory));
    return owned.pool;
  };
  models.target = pass(target, limits.max_logits_rows);
  models.draft = pass(draft, options.max_batch_size);
  models.target_pool = pool(target.weights->spec);
  models.draft_pool = pool(draft.weights->spec);
  return models;
}

void ReadEvents(Engine& engine, Outputs& outputs) {
  Event event;
  while (engine.PopEvent(event, Nanos(0))) {
    Output& output = outputs[{event.request, event.choice}];
    EXPECT_EQ(output.finish, FinishReason::kNone) << "an event after the last one";
    for (const SampledToken& token : event.tokens) {
      output.tokens.push_back(token.token);
      output.details.push_back(token);
    }
    std::ranges::move(event.context_logits, std::back_inserter(output.context_logits));
    std::ranges::move(event.generation_logits, std::back_inserter(output.generation_logits));
    std::ranges::move(event.prompt_logprobs, std::back_inserter(output.prompt_logprobs));
    output.finish = event.finish;
    if (event.finish == FinishReason::kEnd) output.end = event.end;
    output.usage = event.usage;
    output.error = event.error;
  }
}

void RunToEnd(Engine& engine, Outputs& outputs, size_t num_choices) {
  const auto ended = [&] {
    size_t count = 0;
    for (const auto& [key, output] : outputs) count += output.finish != FinishReason::kNone;
    return count;
  };
  for (int step = 0; step < 200000; ++step) {
    ReadEvents(engine, outputs);
    if (ended() >= num_choices) return;
    engine.Step();
  }
  FAIL() << "the requests never ended";
}

std::vector<std::vector<Output>> RunRequests(Engine& engine, const std::vector<Request>& requests) {
  std::vector<RequestId> ids;
  size_t num_choices = 0;
  for (const Request& request : requests) {
    const Result<RequestId> id = engine.Submit(request);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    ids.push_back(*id);
    num_choices += static_cast<size_t>(request.num_choices);
  }
  Outputs outputs;
  RunToEnd(engine, outputs, num_choices);
  while (engine.Step()) {
  }
  engine.CheckIntegrity();
  EXPECT_EQ(engine.Stats().kv.referenced_blocks, 0);
  EXPECT_EQ(engine.Stats().kv.referenced_window_blocks, 0);
  std::vector<std::vector<Output>> results;
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<Output>& choices = results.emplace_back();
    for (int32_t c = 0; c < requests[i].num_choices; ++c) {
      choices.push_back(outputs[{ids[i], c}]);
    }
  }
  return results;
}

Request SimpleRequest(std::vector<int32_t> prompt, int32_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0f;
  request.seed = 11;
  return request;
}

std::vector<int32_t> CountingPrompt(int32_t length, int32_t start, int64_t vocab) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>((start + i) % vocab));
  }
  return prompt;
}

}  // namespace tandem
