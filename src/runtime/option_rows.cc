#include "runtime/option_rows.h"

#include <algorithm>
#include <optional>

namespace tandem {
namespace {

constexpr std::string_view kBatching = "Batching and memory";
constexpr std::string_view kSpeculation = "Speculation";

template <auto kField>
BoundOption<EngineOptions> Sets(const OptionSpec& spec) {
  return BindOption<EngineOptions, kField>(spec);
}

// A given length is the length of every draft.
void SetDraftLength(const OptionValues& values, const OptionSpec& spec, EngineOptions& options) {
  options.fixed_draft_len = static_cast<int32_t>(values.Int(spec));
  if (options.fixed_draft_len > 0) options.draft_mode = DraftMode::kFixed;
}

// After draft_len, which it overrides.
void SetNoDraft(const OptionValues& values, const OptionSpec& spec, EngineOptions& options) {
  if (values.Flag(spec)) options.draft_mode = DraftMode::kOff;
}

}  // namespace

const BoundOptions<EngineOptions>& EngineOptionRows() {
  static const BoundOptions<EngineOptions> bound({
      Sets<&EngineOptions::max_batch_size>({.name = "max_batch_size",
                                            .meaning = "Sequences that run in one step",
                                            .group = kBatching,
                                            .min = 1,
                                            .max = 4096,
                                            .alias = "max_num_seqs"}),
      Sets<&EngineOptions::max_num_tokens>(
          {.name = "max_num_tokens",
           .meaning =
               "Tokens computed in one step: prompt chunks, decoded tokens and drafts together",
           .group = kBatching,
           .min = 1,
           .max = 1 << 20}),
      Sets<&EngineOptions::max_seq_len>(
          {.name = "max_seq_len",
           .meaning = "Prompt and output tokens of one sequence; 0: the limit of model and cache",
           .group = kBatching,
           .min = 0,
           .max = 1 << 24,
           .alias = "max_model_len"}),
      Sets<&EngineOptions::max_input_len>(
          {.name = "max_input_len",
           .meaning = "Prompt tokens of one sequence; a longer prompt is refused; 0: max_seq_len",
           .group = kBatching,
           .min = 0,
           .max = 1 << 24}),
      Sets<&EngineOptions::max_queue_size>(
          {.name = "max_queue_size",
           .meaning = "Most waiting requests; further ones get 429 and may be sent again later",
           .group = kBatching,
           .min = 1,
           .max = 1 << 20}),
      Sets<&EngineOptions::max_logits_bytes>(
          {.name = "max_logits_bytes",
           .type = OptionType::kBytes,
           .meaning = "Most logits (fp32) that one request may get back, with those it sends; a "
                      "larger request is refused; 0: none",
           .group = kBatching,
           .min = 0}),
      Sets<&EngineOptions::kv_cache_bytes>(
          {.name = "kv_cache_bytes",
           .type = OptionType::kBytes,
           .meaning = "Keys and values of both models; 0: planned from free memory",
           .group = kBatching,
           .min = 0}),
      Sets<&EngineOptions::kv_cache_free_fraction>(
          {.name = "kv_cache_free_gpu_mem_fraction",
           .gpu_default = "0.9",
           .meaning = "Share of the memory free after loading that keys and values may take, when "
                      "--kv_cache_bytes is 0",
           .group = kBatching,
           .min = 0.01,
           .max = 0.99,
           .alias = "kv_cache_free_gpu_memory_fraction"}),
      Sets<&EngineOptions::kv_cache_tokens>(
          {.name = "max_tokens_in_paged_kv_cache",
           .meaning = "Most tokens whose keys and values are stored, even where there is memory "
                      "for more; 0: no such limit",
           .group = kBatching,
           .min = 0,
           .max = 1 << 30}),
      BindChoice<EngineOptions, &EngineOptions::kv_cache_dtype>(
          {.name = "kv_cache_dtype",
           .meaning = "Type of stored keys and values: the model's own, fp8, or int8 (CPU; with "
                      "calibrated scales, as tandem quantize makes them)",
           .group = kBatching},
          {{"auto", std::nullopt}, {"fp8", DType::kF8E4M3}, {"int8", DType::kI8}}),
      Sets<&EngineOptions::kv_host_cache_bytes>(
          {.name = "kv_host_cache_bytes",
           .type = OptionType::kBytes,
           .meaning =
               "Host memory (pinned, with a GPU) that keeps blocks evicted from the cache; a "
               "prompt that begins with them gets them back; 0: they are lost",
           .group = kBatching,
           .min = 0}),
      Sets<&EngineOptions::kv_onboard_blocks>(
          {.name = "kv_onboard_blocks",
           .meaning =
               "Bring blocks back from host memory; false switches --kv_host_cache_bytes off",
           .group = kBatching}),
      Sets<&EngineOptions::kv_offload_min_priority>(
          {.name = "kv_offload_min_priority",
           .meaning = "Evicted blocks go to host memory if their retention priority is at least "
                      "this; every block has 35, so more switches --kv_host_cache_bytes off",
           .group = kBatching,
           .min = 0,
           .max = 100}),
      Sets<&EngineOptions::kv_event_buffer>(
          {.name = "kv_event_buffer",
           .meaning = "Events of the cache (blocks stored, moved, removed) kept until "
                      "/kv_cache_events is asked for them; the oldest are lost first; 0: none",
           .group = kBatching,
           .min = 0,
           .max = 1 << 24}),
      Sets<&EngineOptions::block_tokens>({.name = "tokens_per_block",
                                          .meaning = "Tokens of one cache block, a power of two",
                                          .group = kBatching,
                                          .choices = "8|16|32|64|128"}),
      Sets<&EngineOptions::enable_prefix_reuse>(
          {.name = "enable_kv_cache_reuse",
           .meaning = "Keep the cache of finished prompts and reuse shared prefixes",
           .group = kBatching,
           .alias = "kv_cache_enable_block_reuse"}),
      Sets<&EngineOptions::enable_chunked_prefill>(
          {.name = "enable_chunked_context",
           .meaning =
               "Split long prompts over several steps, so that other sequences go on decoding",
           .group = kBatching}),
      Sets<&EngineOptions::enable_batch_size_tuning>(
          {.name = "enable_batch_size_tuning",
           .meaning = "Bound the sequences of a step, within --max_batch_size, by how many of the "
                      "average length of the last 128 the cache holds",
           .group = kBatching}),
      Sets<&EngineOptions::enable_max_num_tokens_tuning>(
          {.name = "enable_max_num_tokens_tuning",
           .meaning = "Bound the tokens of a step, within --max_num_tokens, by the average prompt "
                      "and output of the last 128 sequences; needs --enable_chunked_context",
           .group = kBatching}),
      BindChoice<EngineOptions, &EngineOptions::policy>(
          {.name = "batch_scheduler_policy",
           .meaning = "Admit optimistically and pause when memory runs out, reserve to the longest "
                      "length, or one batch at a time",
           .group = kBatching},
          {{"max_utilization", SchedulerPolicy::kMaxUtilization},
           {"guaranteed_no_evict", SchedulerPolicy::kGuaranteedNoEvict},
           {"static_batch", SchedulerPolicy::kStaticBatch}}),
      Sets<&EngineOptions::steps_in_flight>(
          {.name = "steps_in_flight",
           .gpu_default = "1",
           .meaning = "Steps enqueued before the results of the last one are read",
           .group = kBatching,
           .min = 0,
           .max = 1}),
      {{.name = "draft_len",
        .type = OptionType::kInt,
        .default_value = "0",
        .meaning =
            "Draft this many tokens in every round; 0: chosen for each sequence by what pays",
        .group = kSpeculation,
        .min = 0,
        .max = 64,
        .alias = "n_draft_tokens"},
       SetDraftLength},
      {{.name = "no_draft",
        .type = OptionType::kFlag,
        .meaning = "Decode with the target alone",
        .group = kSpeculation},
       SetNoDraft},
      Sets<&EngineOptions::max_draft_len>({.name = "max_draft_len",
                                           .meaning = "Longest draft of a round",
                                           .group = kSpeculation,
                                           .min = 1,
                                           .max = 64}),
      Sets<&EngineOptions::lookup_ngram>(
          {.name = "lookup_ngram",
           .meaning = "Before the draft model is asked, look drafts up in the sequence's own "
                      "tokens by n-grams of this length; 0: off",
           .group = kSpeculation,
           .min = 0,
           .max = 16}),
      Sets<&EngineOptions::draft_forced>(
          {.name = "draft_forced",
           .meaning = "Before the draft model is asked, draft the tokens that a grammar forces "
                      "(on a CPU, and not with --use_draft_logits)",
           .group = kSpeculation}),
      Sets<&EngineOptions::ratio_acceptance>(
          {.name = "use_draft_logits",
           .meaning = "Accept drafts by the ratio of probabilities instead of by equal tokens",
           .group = kSpeculation}),
      Sets<&EngineOptions::seed>(
          {.name = "seed",
           .meaning = "Seed for requests that bring none; 0: from the system",
           .group = kSpeculation,
           .min = 0}),
  });
  return bound;
}

EngineOptions EngineOptionsFrom(const OptionValues& values, bool on_gpu) {
  EngineOptions options;
  EngineOptionRows().Apply(values, options);
  if (on_gpu) EngineOptionRows().ApplyGpuDefaults(values, options);
  options.max_draft_len = std::max(options.max_draft_len, options.fixed_draft_len);
  return options;
}

}  // namespace tandem
