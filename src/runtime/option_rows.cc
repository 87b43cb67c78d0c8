#include "runtime/option_rows.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr std::string_view kBatching = "Batching and memory";
constexpr std::string_view kSpeculation = "Speculation";

constexpr OptionSpec kRows[] = {
    {.name = "max_batch_size",
     .type = OptionType::kInt,
     .default_value = "64",
     .meaning = "Sequences that run in one step",
     .group = kBatching,
     .min = 1,
     .max = 4096},
    {.name = "max_num_tokens",
     .type = OptionType::kInt,
     .default_value = "2048",
     .meaning = "Rows of one step: prompt chunks, decoded tokens and drafts together",
     .group = kBatching,
     .min = 16,
     .max = 1 << 20},
    {.name = "max_seq_len",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Prompt and output tokens of one sequence; 0: what the model and the cache allow",
     .group = kBatching,
     .min = 0,
     .max = 1 << 24},
    {.name = "max_input_len",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Prompt tokens of one sequence; a longer prompt is refused; 0: as max_seq_len",
     .group = kBatching,
     .min = 0,
     .max = 1 << 24},
    {.name = "max_queue_size",
     .type = OptionType::kInt,
     .default_value = "256",
     .meaning = "Requests that wait; one more is refused (429) and may be sent again later",
     .group = kBatching,
     .min = 1,
     .max = 1 << 20},
    {.name = "kv_cache_bytes",
     .type = OptionType::kBytes,
     .default_value = "0",
     .meaning = "Keys and values of both models; 0: planned from free memory",
     .group = kBatching,
     .min = 0},
    {.name = "kv_cache_free_gpu_mem_fraction",
     .type = OptionType::kFloat,
     .default_value = "0.5",
     .meaning = "Share of the memory free after loading that keys and values may take, when "
                "--kv_cache_bytes is 0; 0.9 on a GPU when left out",
     .group = kBatching,
     .min = 0.01,
     .max = 0.99,
     .alias = "kv_cache_free_gpu_memory_fraction"},
    {.name = "kv_cache_dtype",
     .default_value = "auto",
     .meaning = "What keys and values are kept in: the model's own type, or fp8 (GPU)",
     .group = kBatching,
     .choices = "auto|fp8"},
    {.name = "tokens_per_block",
     .type = OptionType::kInt,
     .default_value = "32",
     .meaning = "Tokens of one cache block, a power of two",
     .group = kBatching,
     .choices = "8|16|32|64|128"},
    {.name = "enable_kv_cache_reuse",
     .type = OptionType::kFlag,
     .default_value = "true",
     .meaning = "Keep the cache of finished prompts and reuse shared prefixes",
     .group = kBatching},
    {.name = "enable_chunked_context",
     .type = OptionType::kFlag,
     .default_value = "true",
     .meaning = "Split long prompts over steps, beside decoding sequences",
     .group = kBatching},
    {.name = "batch_scheduler_policy",
     .default_value = "max_utilization",
     .meaning = "Admit optimistically and pause when memory runs out, reserve to the longest "
                "length, or one batch at a time",
     .group = kBatching,
     .choices = "max_utilization|guaranteed_no_evict|static_batch"},
    {.name = "steps_in_flight",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Steps enqueued before the results of the last one are read; 1 on a GPU when left "
                "out",
     .group = kBatching,
     .min = 0,
     .max = 1},
    {.name = "no_draft",
     .type = OptionType::kFlag,
     .meaning = "Decode with the target alone",
     .group = kSpeculation},
    {.name = "draft_len",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Draft so many tokens every round; 0: chosen per sequence by what pays",
     .group = kSpeculation,
     .min = 0,
     .max = 64},
    {.name = "max_draft_len",
     .type = OptionType::kInt,
     .default_value = "8",
     .meaning = "Longest draft of a round",
     .group = kSpeculation,
     .min = 1,
     .max = 64},
    {.name = "lookup_ngram",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Draft from the sequence's own history first, by its last so many tokens; 0: off",
     .group = kSpeculation,
     .min = 0,
     .max = 16},
    {.name = "use_draft_logits",
     .type = OptionType::kFlag,
     .meaning = "Accept drafts by the ratio of probabilities instead of by equal tokens",
     .group = kSpeculation},
    {.name = "seed",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Source of the seeds of requests that bring none; 0: from the system",
     .group = kSpeculation,
     .min = 0},
};

SchedulerPolicy PolicyFrom(const std::string& name) {
  if (name == "guaranteed_no_evict") return SchedulerPolicy::kGuaranteedNoEvict;
  if (name == "static_batch") return SchedulerPolicy::kStaticBatch;
  return SchedulerPolicy::kMaxUtilization;
}

}  // namespace

std::span<const OptionSpec> EngineOptionRows() { return kRows; }

EngineOptions EngineOptionsFrom(const OptionValues& values) {
  const auto integer = [&](std::string_view name) {
    return static_cast<int32_t>(values.Int(name));
  };
  EngineOptions options;
  options.max_batch_size = integer("max_batch_size");
  options.max_num_tokens = integer("max_num_tokens");
  options.max_seq_len = integer("max_seq_len");
  options.max_input_len = integer("max_input_len");
  options.max_queue_size = integer("max_queue_size");
  options.kv_cache_bytes = values.Int("kv_cache_bytes");
  options.kv_cache_free_fraction = values.Float("kv_cache_free_gpu_mem_fraction");
  if (values.Text("kv_cache_dtype") == "fp8") options.kv_cache_dtype = DType::kF8E4M3;
  options.block_tokens = integer("tokens_per_block");
  options.enable_prefix_reuse = values.Flag("enable_kv_cache_reuse");
  options.enable_chunked_prefill = values.Flag("enable_chunked_context");
  options.policy = PolicyFrom(values.Text("batch_scheduler_policy"));
  options.steps_in_flight = integer("steps_in_flight");
  options.fixed_draft_len = integer("draft_len");
  options.draft_mode = values.Flag("no_draft")       ? DraftMode::kOff
                       : options.fixed_draft_len > 0 ? DraftMode::kFixed
                                                     : DraftMode::kAdaptive;
  options.max_draft_len = std::max(integer("max_draft_len"), options.fixed_draft_len);
  options.lookup_ngram = integer("lookup_ngram");
  options.ratio_acceptance = values.Flag("use_draft_logits");
  options.seed = static_cast<uint64_t>(values.Int("seed"));
  return options;
}

}  // namespace tandem
