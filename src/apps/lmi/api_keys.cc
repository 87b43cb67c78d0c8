// The keys of the containers from 0.33 on, which are arguments of TensorRT-LLM's own Python API.
#include <fmt/format.h>

#include "apps/lmi/key_rows.h"

namespace tandem::apps::lmi_rows {
namespace {

using S = LmiSettings;

constexpr const char* kHowSplit =
    "a model is split by `option.tensor_parallel_degree` and `option.pipeline_parallel_size` alone";

Result<std::string> CacheType(const std::string& value) {
  if (value == "auto" || value == "fp8") return value;
  return InvalidArgument(fmt::format("must be auto or fp8, not '{}'", value));
}

}  // namespace

std::span<const LmiKey> LlmApiKeys() {
  static const std::vector<LmiKey> keys = {
      Text<[](S& s) -> auto& { return s.sources.tokenizer; }>(
          "option.tokenizer", {},
          "folder or id of the tokenizer, when it is not the model's (`--tokenizer_dir`)"),
      Text<[](S& s) -> auto& { return s.sources.tokenizer_revision; }>(
          "option.tokenizer_revision", {}, "its branch, tag or commit on the hub"),
      Ignored("option.tokenizer_mode", {{33, "auto"}}, "there is one tokenizer, the fast one"),
      Only("option.skip_tokenizer_init", LmiValue::kBool, {{33, "false"}}, "false",
           "would leave the server without text; /v2/models/tensorrt_llm takes tokens"),
      Stages("option.pipeline_parallel_size", {{33, "1"}}),
      Ignored("option.context_parallel_size", {{33, "1"}}, kHowSplit),
      Ignored("option.moe_tensor_parallel_size", {}, kHowSplit),
      Ignored("option.moe_expert_parallel_size", {},
              "experts are divided whole where they cannot be split; `tandem serve` has "
              "`--expert_parallel_size`"),
      Ignored("option.enable_attention_dp", {}, kHowSplit),
      Ignored("option.auto_parallel", {}, kHowSplit),
      Only("option.load_format", LmiValue::kWord, {{33, "auto"}}, "auto|hf|safetensors",
           "is no format that is loaded here"),
      Option("option.enable_chunked_prefill", LmiValue::kBool, {{33, "false"}},
             EngineOption<&EngineOptions::enable_chunked_prefill>(),
             "without it on, so that long prompts hold nobody up"),
      Ignored("option.guided_decoding_backend", {}, "answers that follow a grammar are built in"),
      Ignored("option.iter_stats_max_iterations", {}, "`/metrics` has the statistics"),
      Ignored("option.embedding_parallel_mode", {{33, "SHARDING_ALONG_VOCAB"}}, kHowSplit),
      Ignored("option.enable_build_cache", {{33, "true"}}, "nothing is compiled"),
      Ignored("option.normalize_log_probs", {}, "log-probabilities are those of the softmax"),
      Ignored("option.gather_generation_logits", {}, "requests that ask for logits get them"),
      Integer<[](S& s) -> auto& { return s.limits.max_batch_size; }>(
          "option.max_batch_size", {}, 1, 1 << 20, "see `option.max_rolling_batch_size`",
          EngineOption<&EngineOptions::max_batch_size>()),
      Integer<[](S& s) -> auto& { return s.limits.max_seq_len; }>(
          "option.max_seq_len", {}, 1, 1 << 24,
          "tokens of prompt and output together; with it the defaults of `option.max_input_len` "
          "and `option.max_output_len` are not set",
          EngineOption<&EngineOptions::max_seq_len>()),
      Ignored("option.max_beam_width", {{33, "1"}},
              "no request is answered by beam search; one that asks is told so"),
      Ignored("option.backend", {}, "there is one, which builds nothing"),
      Option("option.enable_block_reuse", LmiValue::kBool, {},
             EngineOption<&EngineOptions::enable_prefix_reuse>(),
             "as `option.enable_kv_cache_reuse`"),
      Option("option.max_tokens", LmiValue::kInteger, {},
             EngineOption<&EngineOptions::kv_cache_tokens>(), "tokens that the cache holds"),
      Ignored("option.max_attention_window", {}, "windows are those of `config.json`"),
      Ignored("option.sink_token_length", {}, "windows are those of `config.json`"),
      Option("option.free_gpu_memory_fraction", LmiValue::kNumber, {},
             EngineOption<&EngineOptions::kv_cache_free_fraction>(),
             "as `option.kv_cache_free_gpu_mem_fraction`"),
      Option("option.host_cache_size", LmiValue::kInteger, {},
             EngineOption<&EngineOptions::kv_host_cache_bytes>(), "in bytes"),
      Option("option.onboard_blocks", LmiValue::kBool, {},
             EngineOption<&EngineOptions::kv_onboard_blocks>()),
      Ignored("option.cross_kv_cache_fraction", {}, "there are no encoder-decoder models"),
      Option("option.secondary_offload_min_priority", LmiValue::kInteger, {},
             EngineOption<&EngineOptions::kv_offload_min_priority>()),
      Option("option.event_buffer_max_size", LmiValue::kInteger, {},
             EngineOption<&EngineOptions::kv_event_buffer>()),
      Overlap("option.enable_overlap_scheduler", {{33, "false"}}, "as `option.enable_trt_overlap`"),
      Converted("option.kv_cache_dtype", LmiValue::kWord, {{33, "auto"}},
                EngineOption<&EngineOptions::kv_cache_dtype>(), "auto or fp8", CacheType),
      Ignored("option.attn_backend", {{33, "TRTLLM"}}, "the fastest kernels are always used"),
      Ignored("option.use_cuda_graph", {{33, "false"}},
              "steps on a GPU are always replayed as graphs"),
      Ignored("option.moe_backend", {{33, "CUTLASS"}}, "the fastest kernels are always used"),
  };
  return keys;
}

}  // namespace tandem::apps::lmi_rows
