// Shared by the runtime's tests: models whose logits are a formula of the whole context, read back
// from the paged cache (so that a wrong block, length or copy shows as wrong tokens), and an engine
// around them that a test drives step by step. The sampler is the real one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "runtime/engine.h"
#include "runtime/engine_options.h"
#include "runtime/engine_parts.h"
#include "runtime/execution/forward_pass.h"

namespace tandem {

struct FormulaModel {
  int64_t vocab = 48;
  // Logits are share * (a formula of the context) + (1 - share) * (another one): a draft with a
  // share below the target's 1 agrees with it more or less often.
  double share = 1.0;
  float scale = 8.0f;  // logits lie in [0, scale)
};

class FormulaPass final : public ForwardPass {
 public:
  FormulaPass(const FormulaModel& model, int32_t max_logits_rows);
  Tensor Forward(const ops::BatchView& batch, const ops::KvPool& pool) override;
  int64_t vocab_size() const override { return model_.vocab; }

  // The logits after `context`.
  std::vector<float> Logits(std::span<const int32_t> context) const;

 private:
  void FillLogits(uint64_t hash, float* logits) const;

  const FormulaModel model_;
  std::vector<float> logits_;
};

struct TestSetup {
  EngineOptions options;
  FormulaModel target;
  FormulaModel draft{.share = 0.8};
  bool draft_model = true;
  int32_t num_blocks = 512;
  int32_t num_host_blocks = 0;
  int32_t draft_max_positions = 1 << 20;
  // Seconds of a target pass of one row, of each further row, and of a draft row.
  double target_seconds = 1.0;
  double target_row_seconds = 0.01;
  double draft_seconds = 0.05;
  // Models to use instead of the formulas, of target.vocab tokens: their passes and pools.
  std::function<ExecutorModels(const SchedulerLimits&)> make_models;
  // The backend of the executor, null: TestBackend; and a wrapper for each model's pass.
  ops::Backend* backend = nullptr;
  std::function<std::unique_ptr<ForwardPass>(std::unique_ptr<ForwardPass>)> wrap_pass;
  // ExecutorConfig::mask_patience, if not its default, and long_mask_patience: for a busy machine a
  // minute, so that no mask is late by chance where a test counts steps.
  std::optional<Nanos> mask_patience;
  Nanos long_mask_patience = std::chrono::minutes(1);
  // The executor rehearses before the engine starts; the prices stay as above.
  bool rehearse = false;
  // A wrapper for the executor, if any.
  std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)> wrap_executor;
  std::shared_ptr<EventQueue> events;  // of an engine that is one of several
};

// The executor under test: each suite runs it once as on the host and once, with the variable
// TANDEM_TEST_EXECUTOR set to "device", as on a device.
ExecutorKind TestExecutor();

// Small blocks and budgets, so that tests reach their limits often.
EngineOptions SmallOptions();
std::unique_ptr<Engine> MakeTestEngine(const TestSetup& setup, const Clock& clock);
// For TestSetup::make_models: loaded models, on TestBackend.
ExecutorModels MakeModels(const EngineModel& target, const EngineModel& draft,
                          const TestSetup& setup, const SchedulerLimits& limits);
// The CPU, or with TANDEM_TEST_BACKEND set to "cuda" the GPU, batch-invariant: for models made on
// it (a FormulaPass computes on the host).
ops::Backend& TestBackend();
bool TestOnCuda();
// False where the GPU is asked for and there is none: skip.
bool HasTestBackend();

struct Output {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> details;
  std::vector<LogitsRow> context_logits;
  std::vector<LogitsRow> generation_logits;
  std::vector<SampledToken> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  SampledToken end;  // as Event
  Usage usage;
  Status error;
};
using Outputs = std::map<std::pair<RequestId, int32_t>, Output>;

// Takes the available events.
void ReadEvents(Engine& engine, Outputs& outputs);
// Steps until `num_choices` choices have ended; fails the test if that takes too long.
void RunToEnd(Engine& engine, Outputs& outputs, size_t num_choices);
// Submits all requests and runs to the end: the outputs of request i, choice c at [i][c].
// Afterwards checks that no block is referenced.
std::vector<std::vector<Output>> RunRequests(Engine& engine, const std::vector<Request>& requests);

Request SimpleRequest(std::vector<int32_t> prompt, int32_t max_tokens);
std::vector<int32_t> CountingPrompt(int32_t length, int32_t start, int64_t vocab = 48);

}  // namespace tandem
