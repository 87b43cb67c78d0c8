#include "apps/cli/legacy_options.h"

#include "base/log.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kGroup = "Accepted for old command lines, without effect";

constexpr OptionSpec Recorded(std::string_view name, OptionType type) {
  return {.name = name, .type = type, .meaning = "No effect", .group = kGroup};
}
// Bare in some releases, with enable or disable in others.
constexpr OptionSpec Switch(std::string_view name) { return Recorded(name, OptionType::kFlag); }
// With a value; bare in the oldest releases.
constexpr OptionSpec Value(std::string_view name) {
  return Recorded(name, OptionType::kOptionalText);
}

constexpr OptionSpec kConvert[] = {
    Switch("load_by_shard"),
    Switch("load_model_on_cpu"),
    Value("workers"),
    Value("model_type"),
    Value("moe_tp_size"),
    Value("moe_ep_size"),
    Switch("disable_weight_only_quant_plugin"),
    Value("vocab_size"),
    Value("n_positions"),
    Value("n_layer"),
    Value("n_head"),
    Value("n_kv_head"),
    Value("n_embd"),
    Value("inter_size"),
    Value("rms_norm_eps"),
};

constexpr OptionSpec kQuantize[] = {
    Value("tokenizer_max_seq_length"), Value("device_map"),       Value("seed"),
    Value("max_seq_length"),           Value("num_medusa_heads"), Value("num_medusa_layers"),
};

constexpr OptionSpec kBuild[] = {
    Value("gpt_attention_plugin"),
    Value("gemm_plugin"),
    Value("gemm_swiglu_plugin"),
    Value("low_latency_gemm_swiglu_plugin"),
    Value("low_latency_gemm_plugin"),
    Value("nccl_plugin"),
    Value("moe_plugin"),
    Value("gemm_allreduce_plugin"),
    Switch("norm_quant_fusion"),
    Switch("use_fused_mlp"),
    Switch("remove_input_padding"),
    Switch("paged_kv_cache"),
    Value("kv_cache_type"),
    Switch("context_fmha"),
    Switch("context_fmha_fp32_acc"),
    Switch("multi_block_mode"),
    Switch("use_paged_context_fmha"),
    Switch("use_fp8_context_fmha"),
    Switch("gather_context_logits"),
    Switch("gather_generation_logits"),
    Switch("gather_all_token_logits"),
    Value("logits_dtype"),
    Value("opt_num_tokens"),
    Switch("reduce_fusion"),
    Switch("user_buffer"),
    Switch("multiple_profiles"),
    Value("max_prompt_embedding_table_size"),
    Value("max_encoder_input_len"),
    Switch("weight_streaming"),
    Switch("strip_plan"),
    Switch("fast_build"),
    Switch("streamingllm"),
    Value("auto_parallel"),
    Value("workers"),
    Value("profiling_verbosity"),
    Switch("use_custom_all_reduce"),
    Switch("strongly_typed"),
    Value("builder_opt"),
    Value("tp_size"),
    Value("dtype"),
    Value("use_gpt_attention_plugin"),
    Value("use_gemm_plugin"),
    Switch("use_inflight_batching"),
    Switch("use_weight_only"),
    Value("weight_only_precision"),
    Switch("per_group"),
    Value("group_size"),
    Value("world_size"),
    Value("tokens_per_block"),
    Value("input_timing_cache"),
    Value("output_timing_cache"),
    Switch("enable_debug_output"),
    Switch("monitor_memory"),
    Switch("weight_sparsity"),
    Value("bert_attention_plugin"),
    Value("mamba_conv1d_plugin"),
    Value("use_rmsnorm_plugin"),
    Switch("enable_context_fmha"),
    Switch("enable_context_fmha_fp32_acc"),
    Switch("parallel_build"),
    Switch("load_by_shard"),
};

constexpr OptionSpec kRun[] = {
    Switch("multi_block_mode"),
    Switch("enable_context_fmha_fp32_acc"),
    Switch("cuda_graph_mode"),
    Value("gpu_weights_percent"),
    Switch("use_py_session"),
    Switch("debug_mode"),
    Value("cross_kv_cache_fraction"),
    Value("sink_token_length"),
    Value("early_stopping"),
    Value("length_penalty"),
    Value("tokenizer_type"),
    Value("vocab_file"),
    Value("streaming_interval"),
    Switch("output_generation_logits"),
    Value("beam_search_diversity_rate"),
};

constexpr OptionSpec kServe[] = {
    Value("backend_config"),
    Value("backend_directory"),
    Value("cuda_memory_pool_byte_size"),
    Value("pinned_memory_pool_byte_size"),
    Switch("enable_peer_access"),
    Switch("strict_model_config"),
    Switch("allow_cpu_metrics"),
    Value("metrics_config"),
    Value("metrics_interval_ms"),
    Value("grpc_infer_allocation_pool_size"),
    Value("grpc_infer_thread_count"),
    Value("grpc_max_response_pool_size"),
    Switch("reuse_http_port"),
    Switch("reuse_grpc_port"),
    Value("http_header_forward_pattern"),
    Value("grpc_header_forward_pattern"),
    Value("repository_poll_secs"),
    Value("model_load_thread_count"),
    Value("model_load_retry_count"),
    Value("model_load_gpu_limit"),
    Value("buffer_manager_thread_count"),
    Value("min_supported_compute_capability"),
    Value("host_policy"),
    Value("id"),
    Value("trace_config"),
    Value("trace_file"),
    Value("trace_level"),
    Value("trace_rate"),
    Value("trace_count"),
    Value("trace_log_frequency"),
    Value("rate_limit"),
    Value("rate_limit_resource"),
    Value("response_cache_byte_size"),
    Value("cache_config"),
    Value("cache_directory"),
    Value("repoagent_directory"),
    // Of llgtrt's fork, where they had none either.
    Value("draft_tokenizer"),
    Value("draft_token_acc_rate"),
};

}  // namespace

std::span<const OptionSpec> LegacyServeRows() { return kServe; }
std::span<const OptionSpec> LegacyConvertRows() { return kConvert; }
std::span<const OptionSpec> LegacyQuantizeRows() { return kQuantize; }
std::span<const OptionSpec> LegacyBuildRows() { return kBuild; }
std::span<const OptionSpec> LegacyRunRows() { return kRun; }

void NameLegacyOptions(const OptionValues& values, std::span<const OptionSpec> rows) {
  std::string names;
  for (const OptionSpec& row : rows) {
    if (!values.IsSet(row)) continue;
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  if (!names.empty()) LogWarning("accepted without effect here: {}", names);
}

}  // namespace tandem::apps
