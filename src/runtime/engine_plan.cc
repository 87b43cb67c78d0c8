#include "runtime/engine_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/decoder/decoder.h"
#include "runtime/execution/device_memory.h"

namespace tandem {
namespace {

// Number of sequences that may use the full draft length in one step; if more decode, they share
// it.
constexpr int32_t kFullDrafts = 16;

bool UsesDraft(const EngineOptions& options, const ModelMemory& draft) {
  return draft.spec != nullptr && options.draft_mode != DraftMode::kOff;
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
  if (options.max_seq_len == 1) {
    return InvalidArgument(
        "max_seq_len is 1; a sequence has at least 2 tokens, one of prompt and one of output");
  }
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

SchedulerLimits LimitsFrom(const EngineOptions& options, const ModelMemory& draft,
                           const ops::Backend& backend) {
  SchedulerLimits limits;
  limits.max_batch_size = options.max_batch_size;
  limits.max_num_tokens = options.max_num_tokens;
  limits.chunked_prefill = options.enable_chunked_prefill;
  limits.prefix_reuse = options.enable_prefix_reuse;
  limits.policy = options.policy;
  limits.draft_mode = options.draft_mode;
  limits.fixed_draft_len = options.fixed_draft_len;
  limits.max_draft_len = options.draft_mode == DraftMode::kOff ? 0 : options.max_draft_len;
  limits.draft_model = UsesDraft(options, draft);
  if (limits.draft_model) {
    limits.draft_max_positions = static_cast<int32_t>(draft.max_positions);
  }
  const int32_t full_drafts = std::min(options.max_batch_size, kFullDrafts);
  limits.max_logits_rows = options.max_batch_size + full_drafts * limits.max_draft_len;
  limits.drafts_constrained = DraftsConstrained(options, backend);
  limits.max_launched = options.steps_in_flight + 1;
  return limits;
}

// Effects of options on each other: without a source of drafts there is no drafting, and a step has
// a row for every sequence.
EngineOptions Effective(EngineOptions options, const ModelMemory& draft) {
  if (!UsesDraft(options, draft) && options.lookup_ngram == 0) {
    options.draft_mode = DraftMode::kOff;
  }
  options.max_draft_len = std::max(
      options.max_draft_len, options.draft_mode == DraftMode::kFixed ? options.fixed_draft_len : 0);
  options.max_batch_size = std::min(options.max_batch_size, options.max_num_tokens);
  return options;
}

}  // namespace

bool OnDevice(const EngineOptions& options, const ops::Backend& backend) {
  return options.executor == ExecutorKind::kDevice ||
         (options.executor == ExecutorKind::kAuto && backend.device().kind != Device::Kind::kCpu);
}

bool DraftsConstrained(const EngineOptions& options, const ops::Backend& backend) {
  return !options.ratio_acceptance || !OnDevice(options, backend);
}

ExecutorConfig MakeExecutorConfig(const EngineOptions& options, const SchedulerLimits& limits,
                                  const ops::Backend& backend) {
  ExecutorConfig config;
  config.max_batch_size = options.max_batch_size;
  config.max_num_tokens = options.max_num_tokens;
  config.max_logits_rows = limits.max_logits_rows;
  config.max_seq_len = options.max_seq_len;
  config.block_tokens = options.block_tokens;
  config.max_draft_len = limits.max_draft_len;
  config.lookup_ngram = options.lookup_ngram;
  config.ratio_acceptance = options.ratio_acceptance;
  config.max_launched = limits.max_launched;
  config.on_host = !OnDevice(options, backend);
  return config;
}

Result<EnginePlan> PlanEngine(const EngineOptions& asked, ModelMemory target, ModelMemory draft,
                              const ops::Backend& backend, int64_t free_bytes) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(asked));
  if (asked.kv_cache_dtype.has_value() && backend.device().kind == Device::Kind::kCpu) {
    return Unimplemented("kv_cache_dtype: on a CPU keys and values have the model's own type");
  }
  EnginePlan plan;
  EngineOptions& options = plan.options;
  options = Effective(asked, draft);
  plan.limits = LimitsFrom(options, draft, backend);
  if (!plan.limits.draft_model) draft = {};

  const int32_t rows = options.max_num_tokens;
  target.workspace_bytes = Decoder::WorkspaceBytes(*target.spec, rows, plan.limits.max_logits_rows);
  if (draft.spec != nullptr) {
    draft.workspace_bytes = Decoder::WorkspaceBytes(*draft.spec, rows, options.max_batch_size);
  }
  ExecutorConfig longest = MakeExecutorConfig(options, plan.limits, backend);
  if (longest.max_seq_len == 0) longest.max_seq_len = static_cast<int32_t>(target.max_positions);
  const int64_t draft_vocab = draft.spec != nullptr ? draft.spec->vocab_size : 0;
  const int64_t executor_bytes = DeviceMemory::Bytes(longest, target.spec->vocab_size, draft_vocab);
  TANDEM_ASSIGN_OR_RETURN(plan.memory,
                          PlanMemory(options, target, draft, executor_bytes, free_bytes));
  options.max_seq_len = plan.memory.max_seq_len;
  options.kv_cache_bytes = plan.memory.kv_cache_bytes;
  return plan;
}

}  // namespace tandem
