// Engine::Create: from loaded models and options to the parts of an engine.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/cost_probe.h"
#include "runtime/cpu_executor.h"
#include "runtime/device_executor.h"
#include "runtime/device_memory.h"
#include "runtime/engine.h"
#include "runtime/engine_parts.h"
#include "runtime/memory_planner.h"

namespace tandem {
namespace {

// Sequences that may draft to the full in one step; where more decode, they share.
constexpr int32_t kFullDrafts = 16;

bool HasDraftModel(const EngineOptions& options, const EngineModel& draft) {
  return draft.weights != nullptr && options.draft_mode != DraftMode::kOff;
}

Status CheckOptions(const EngineOptions& options) {
  const auto at_least = [](std::string_view name, int64_t value, int64_t least) {
    return value >= least ? Status()
                          : InvalidArgument(fmt::format("{} must be at least {}; it is {}", name,
                                                        least, value));
  };
  TANDEM_RETURN_IF_ERROR(at_least("max_batch_size", options.max_batch_size, 1));
  TANDEM_RETURN_IF_ERROR(at_least("max_num_tokens", options.max_num_tokens, 1));
  TANDEM_RETURN_IF_ERROR(at_least("max_seq_len", options.max_seq_len, 0));
  TANDEM_RETURN_IF_ERROR(at_least("max_input_len", options.max_input_len, 0));
  TANDEM_RETURN_IF_ERROR(at_least("max_queue_size", options.max_queue_size, 1));
  TANDEM_RETURN_IF_ERROR(at_least("kv_cache_bytes", options.kv_cache_bytes, 0));
  TANDEM_RETURN_IF_ERROR(at_least("block_tokens", options.block_tokens, 1));
  TANDEM_RETURN_IF_ERROR(at_least("lookup_ngram", options.lookup_ngram, 0));
  if (options.steps_in_flight < 0 || options.steps_in_flight > 1) {
    return InvalidArgument(
        fmt::format("steps_in_flight must be 0 or 1; it is {}", options.steps_in_flight));
  }
  if (options.draft_mode == DraftMode::kOff) return {};
  TANDEM_RETURN_IF_ERROR(at_least("max_draft_len", options.max_draft_len, 1));
  return options.draft_mode == DraftMode::kFixed
             ? at_least("fixed_draft_len", options.fixed_draft_len, 1)
             : Status();
}

int64_t BytesOf(const ops::LinearWeight& weight) {
  return static_cast<int64_t>(weight.data.bytes() + weight.bias.bytes() + weight.scales.bytes());
}

int64_t BytesOf(const Weights& weights) {
  auto bytes = static_cast<int64_t>(weights.embedding.bytes() + weights.final_norm.bytes() +
                                    weights.rope_cos.bytes() + weights.rope_sin.bytes()) +
               BytesOf(weights.head);
  for (const LayerWeights& layer : weights.layers) {
    bytes += static_cast<int64_t>(layer.input_norm.bytes() + layer.post_norm.bytes()) +
             BytesOf(layer.qkv) + BytesOf(layer.out) + BytesOf(layer.gate_up) + BytesOf(layer.down);
  }
  return bytes;
}

// Rows of the rotary tables: weights may have been loaded for fewer positions than the model has.
int64_t MaxPositions(const Weights& weights) {
  const auto row_bytes = static_cast<int64_t>(weights.spec.head_dim / 2 * int64_t{sizeof(float)});
  const auto rows = static_cast<int64_t>(weights.rope_cos.bytes()) / row_bytes;
  return std::min(weights.spec.max_positions, rows);
}

ModelMemory MemoryOf(const EngineModel& model, int32_t max_rows, int32_t max_logits_rows) {
  const Weights& weights = *model.weights;
  return {.spec = &weights.spec,
          .weight_bytes = BytesOf(weights),
          .workspace_bytes = Decoder::WorkspaceBytes(weights.spec, max_rows, max_logits_rows),
          .max_positions = MaxPositions(weights)};
}

bool OnDevice(const EngineOptions& options, const ops::Backend& backend) {
  return options.executor == ExecutorKind::kDevice ||
         (options.executor == ExecutorKind::kAuto && backend.device().kind != Device::Kind::kCpu);
}

Result<std::unique_ptr<Executor>> MakeExecutor(const EngineOptions& options,
                                               const ExecutorConfig& config, ops::Backend& backend,
                                               ExecutorModels models, const CostMeter& meter) {
  if (!OnDevice(options, backend)) {
    return std::unique_ptr<Executor>(
        std::make_unique<CpuExecutor>(config, backend.ops(), std::move(models), meter));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DeviceExecutor> executor,
                          DeviceExecutor::Create(config, backend, std::move(models)));
  return std::unique_ptr<Executor>(std::move(executor));
}

Result<ops::KvPool> MakePool(const ModelSpec& spec, const MemoryPlan& plan,
                             const EngineOptions& options, ops::Backend& backend,
                             std::vector<Buffer>& buffers) {
  const DType dtype = options.kv_cache_dtype.value_or(spec.dtype);
  ops::KvPool pool;
  pool.num_blocks = plan.num_blocks;
  pool.num_layers = static_cast<int32_t>(spec.num_layers);
  pool.num_kv_heads = static_cast<int32_t>(spec.num_kv_heads);
  pool.block_tokens = options.block_tokens;
  pool.head_dim = static_cast<int32_t>(spec.head_dim);
  const int64_t elements = pool.num_blocks * pool.elements_per_block();
  const auto bytes = static_cast<size_t>(elements) * SizeOf(dtype);
  TANDEM_ASSIGN_OR_RETURN(Buffer buffer, backend.Allocate(bytes));
  pool.data = buffer.View(dtype, {elements});
  buffers.push_back(std::move(buffer));
  return pool;
}

Result<std::unique_ptr<ForwardPass>> MakePass(const EngineModel& model, ops::Backend& backend,
                                              int32_t max_rows, int32_t max_logits_rows) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder,
                          Decoder::Create(model.weights, backend, max_rows, max_logits_rows));
  return std::unique_ptr<ForwardPass>(std::make_unique<DecoderPass>(std::move(decoder)));
}

SchedulerLimits LimitsFrom(const EngineOptions& options, const EngineModel& draft) {
  SchedulerLimits limits;
  limits.max_batch_size = options.max_batch_size;
  limits.max_num_tokens = options.max_num_tokens;
  limits.chunked_prefill = options.enable_chunked_prefill;
  limits.prefix_reuse = options.enable_prefix_reuse;
  limits.policy = options.policy;
  limits.draft_mode = options.draft_mode;
  limits.fixed_draft_len = options.fixed_draft_len;
  limits.max_draft_len = options.draft_mode == DraftMode::kOff ? 0 : options.max_draft_len;
  limits.draft_model = HasDraftModel(options, draft);
  if (limits.draft_model) {
    limits.draft_max_positions = static_cast<int32_t>(MaxPositions(*draft.weights));
  }
  const int32_t full_drafts = std::min(options.max_batch_size, kFullDrafts);
  limits.max_logits_rows = options.max_batch_size + full_drafts * limits.max_draft_len;
  return limits;
}

// What an executor holds beside the models: counts, masks and, in ratio mode, the distributions of
// drafts and target; on a device all of the sequences' state. config: max_seq_len the longest there
// can be.
int64_t ExecutorBytes(const ExecutorConfig& config, bool on_device, int64_t vocab,
                      int64_t draft_vocab) {
  if (on_device) return DeviceMemory::Bytes(config, vocab, draft_vocab);
  int64_t bytes = config.max_batch_size * vocab * int64_t{sizeof(int32_t)};
  bytes += config.max_logits_rows * (vocab / 8 + int64_t{sizeof(ops::SampledToken)});
  if (config.ratio_acceptance) {
    bytes += (config.max_logits_rows + config.max_draft_len + 1) * vocab * int64_t{sizeof(float)};
  }
  return bytes;
}

// What the options mean together: nothing to draft with is no drafting, and a step has a row for
// every sequence.
EngineOptions Effective(EngineOptions options, const EngineModel& draft) {
  if (!HasDraftModel(options, draft) && options.lookup_ngram == 0) {
    options.draft_mode = DraftMode::kOff;
  }
  options.max_draft_len = std::max(
      options.max_draft_len, options.draft_mode == DraftMode::kFixed ? options.fixed_draft_len : 0);
  options.max_batch_size = std::min(options.max_batch_size, options.max_num_tokens);
  return options;
}

}  // namespace

ExecutorConfig MakeExecutorConfig(const EngineOptions& options, const SchedulerLimits& limits) {
  ExecutorConfig config;
  config.max_batch_size = options.max_batch_size;
  config.max_num_tokens = options.max_num_tokens;
  config.max_logits_rows = limits.max_logits_rows;
  config.max_seq_len = options.max_seq_len;
  config.block_tokens = options.block_tokens;
  config.max_draft_len = limits.max_draft_len;
  config.lookup_ngram = options.lookup_ngram;
  config.ratio_acceptance = options.ratio_acceptance;
  return config;
}

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& asked, EngineModel target,
                                               EngineModel draft, ops::Backend& backend,
                                               const Clock& clock) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(asked));
  if (asked.kv_cache_dtype.has_value() && backend.device().kind == Device::Kind::kCpu) {
    return Unimplemented("kv_cache_dtype: on a CPU keys and values have the model's own type");
  }
  EngineParts parts;
  parts.options = Effective(asked, draft);
  EngineOptions& options = parts.options;
  parts.limits = LimitsFrom(options, draft);
  parts.has_draft = parts.limits.draft_model;
  parts.vocab_size = target.weights->spec.vocab_size;
  const int32_t rows = options.max_num_tokens;
  const int32_t logits_rows = parts.limits.max_logits_rows;

  const ModelMemory target_memory = MemoryOf(target, rows, logits_rows);
  ModelMemory draft_memory;
  if (parts.has_draft) draft_memory = MemoryOf(draft, rows, options.max_batch_size);
  ExecutorConfig longest = MakeExecutorConfig(options, parts.limits);
  if (longest.max_seq_len == 0) {
    longest.max_seq_len = static_cast<int32_t>(target_memory.max_positions);
  }
  const int64_t draft_vocab = parts.has_draft ? draft.weights->spec.vocab_size : 0;
  const int64_t executor_bytes =
      ExecutorBytes(longest, OnDevice(options, backend), parts.vocab_size, draft_vocab);
  TANDEM_ASSIGN_OR_RETURN(MemoryPlan memory, PlanMemory(options, target_memory, draft_memory,
                                                        executor_bytes, backend.FreeBytes()));
  options.max_seq_len = memory.max_seq_len;
  options.kv_cache_bytes = memory.kv_cache_bytes;
  parts.kv = {memory.num_blocks, options.block_tokens, options.enable_prefix_reuse};
  parts.memory_plan = std::move(memory.lines);

  ExecutorModels models;
  TANDEM_ASSIGN_OR_RETURN(models.target, MakePass(target, backend, rows, logits_rows));
  TANDEM_ASSIGN_OR_RETURN(models.target_pool,
                          MakePool(target.weights->spec, memory, options, backend, models.memory));
  parts.costs = std::make_unique<CostTable>();
  const bool adaptive = options.draft_mode == DraftMode::kAdaptive;
  if (parts.has_draft) {
    TANDEM_ASSIGN_OR_RETURN(models.draft, MakePass(draft, backend, rows, options.max_batch_size));
    TANDEM_ASSIGN_OR_RETURN(models.draft_pool,
                            MakePool(draft.weights->spec, memory, options, backend, models.memory));
  }
  if (adaptive) {
    const int32_t most = std::min(rows, options.max_seq_len);
    TANDEM_ASSIGN_OR_RETURN(
        const std::vector<CostTable::Point> points,
        MeasureCosts(*models.target, models.target_pool, backend, most, logits_rows, clock));
    parts.costs->Set(ModelIndex::kTarget, points);
  }
  if (adaptive && parts.has_draft) {
    const int32_t most = std::min({rows, options.max_seq_len, parts.limits.draft_max_positions});
    TANDEM_ASSIGN_OR_RETURN(const std::vector<CostTable::Point> points,
                            MeasureCosts(*models.draft, models.draft_pool, backend, most,
                                         options.max_batch_size, clock));
    parts.costs->Set(ModelIndex::kDraft, points);
  }

  const ExecutorConfig config = MakeExecutorConfig(options, parts.limits);
  TANDEM_ASSIGN_OR_RETURN(parts.executor, MakeExecutor(options, config, backend, std::move(models),
                                                       CostMeter{&clock, parts.costs.get()}));
  return FromParts(std::move(parts), clock);
}

}  // namespace tandem
