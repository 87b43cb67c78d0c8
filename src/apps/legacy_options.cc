#include "apps/legacy_options.h"

#include "base/log.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kGroup = "Accepted for old command lines, without effect";

constexpr OptionSpec Legacy(std::string_view name) {
  return {.name = name, .type = OptionType::kTexts, .meaning = "Recorded only", .group = kGroup};
}

constexpr OptionSpec kConvert[] = {
    Legacy("load_by_shard"),
    Legacy("load_model_on_cpu"),
    Legacy("workers"),
    Legacy("model_type"),
};

constexpr OptionSpec kBuild[] = {
    Legacy("gpt_attention_plugin"),
    Legacy("gemm_plugin"),
    Legacy("gemm_swiglu_plugin"),
    Legacy("low_latency_gemm_swiglu_plugin"),
    Legacy("low_latency_gemm_plugin"),
    Legacy("nccl_plugin"),
    Legacy("moe_plugin"),
    Legacy("gemm_allreduce_plugin"),
    Legacy("norm_quant_fusion"),
    Legacy("use_fused_mlp"),
    Legacy("remove_input_padding"),
    Legacy("paged_kv_cache"),
    Legacy("kv_cache_type"),
    Legacy("context_fmha"),
    Legacy("context_fmha_fp32_acc"),
    Legacy("multi_block_mode"),
    Legacy("use_paged_context_fmha"),
    Legacy("use_fp8_context_fmha"),
    Legacy("gather_context_logits"),
    Legacy("gather_generation_logits"),
    Legacy("gather_all_token_logits"),
    Legacy("logits_dtype"),
    Legacy("opt_num_tokens"),
    Legacy("reduce_fusion"),
    Legacy("user_buffer"),
    Legacy("multiple_profiles"),
    Legacy("max_prompt_embedding_table_size"),
    Legacy("max_encoder_input_len"),
    Legacy("weight_streaming"),
    Legacy("strip_plan"),
    Legacy("fast_build"),
    Legacy("streamingllm"),
    Legacy("auto_parallel"),
    Legacy("workers"),
    Legacy("profiling_verbosity"),
    Legacy("use_custom_all_reduce"),
    Legacy("strongly_typed"),
    Legacy("builder_opt"),
    Legacy("tp_size"),
};

constexpr OptionSpec kRun[] = {
    Legacy("multi_block_mode"),
    Legacy("enable_context_fmha_fp32_acc"),
    Legacy("cuda_graph_mode"),
    Legacy("gpu_weights_percent"),
    Legacy("use_py_session"),
    Legacy("debug_mode"),
    Legacy("cross_kv_cache_fraction"),
    Legacy("sink_token_length"),
    Legacy("early_stopping"),
    Legacy("length_penalty"),
    Legacy("tokenizer_type"),
    Legacy("vocab_file"),
    Legacy("streaming_interval"),
    Legacy("output_generation_logits"),
    Legacy("beam_search_diversity_rate"),
};

}  // namespace

std::span<const OptionSpec> LegacyConvertRows() { return kConvert; }
std::span<const OptionSpec> LegacyBuildRows() { return kBuild; }
std::span<const OptionSpec> LegacyRunRows() { return kRun; }

void NameLegacyOptions(const OptionValues& values, std::span<const OptionSpec> rows) {
  std::string names;
  for (const OptionSpec& row : rows) {
    if (!values.IsSet(row.name)) continue;
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  if (!names.empty()) LogWarning("accepted without effect, there is nothing to compile: {}", names);
}

}  // namespace tandem::apps
