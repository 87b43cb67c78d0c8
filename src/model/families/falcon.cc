#include "model/families/falcon.h"

#include <array>
#include <cmath>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kArchitectures = {"FalconForCausalLM", "RWForCausalLM"};

constexpr std::array<RoleName, 11> kNames = {{
    {WeightRole::kEmbedding, "transformer.word_embeddings"},
    {WeightRole::kInputNorm, "transformer.h.{}.input_layernorm"},
    {WeightRole::kQuery, "transformer.h.{}.self_attention.query_key_value"},
    {WeightRole::kKey, "transformer.h.{}.self_attention.query_key_value"},
    {WeightRole::kValue, "transformer.h.{}.self_attention.query_key_value"},
    {WeightRole::kAttentionOut, "transformer.h.{}.self_attention.dense"},
    {WeightRole::kPostNorm, "transformer.h.{}.post_attention_layernorm"},
    {WeightRole::kUp, "transformer.h.{}.mlp.dense_h_to_4h"},
    {WeightRole::kDown, "transformer.h.{}.mlp.dense_4h_to_h"},
    {WeightRole::kFinalNorm, "transformer.ln_f"},
    {WeightRole::kHead, "lm_head"},
}};
constexpr std::array<RoleName, 2> kTwoNorms = {{
    {WeightRole::kInputNorm, "transformer.h.{}.ln_attn"},
    {WeightRole::kPostNorm, "transformer.h.{}.ln_mlp"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  const bool is_norm = id.role == WeightRole::kInputNorm || id.role == WeightRole::kPostNorm;
  if (is_norm && spec.layer(id.layer).residual == Residual::kParallelNorms) {
    return NamedSource(spec, id, kTwoNorms);
  }
  // One key-value head is one group; one for each query head are as many groups.
  return GroupedQkvSource(spec, id, kNames);
}

int64_t First(const JsonFields& config, std::string_view key, std::string_view old, int64_t none) {
  return config.Has(key) ? config.Int(key) : config.Int(old, none);
}

// The first 40B configs have neither flag, only n_head_kv.
bool IsNewArchitecture(const JsonFields& config) {
  return config.Bool("new_decoder_architecture", config.Has("n_head_kv"));
}

void Read(const JsonFields& config, ModelSpec& spec) {
  const auto key = [&](std::string_view name, std::string_view old) {
    return config.Has(name) ? name : old;
  };
  ReadSizes(config,
            {.layers = key("num_hidden_layers", "n_layer"),
             .heads = key("num_attention_heads", "n_head"),
             .kv_heads = key("num_attention_heads", "n_head"),
             .intermediate = "ffn_hidden_size",
             .epsilon = "layer_norm_epsilon",
             .default_epsilon = 1e-5,
             .default_tied = true,
             .default_intermediate = true},
            spec);
  if (config.Bool("apply_residual_connection_post_layernorm", false)) {
    Refuse(config, "apply_residual_connection_post_layernorm", "");
  }
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = true;
  const bool grouped = IsNewArchitecture(config);
  const bool parallel = grouped || config.Bool("parallel_attn", true);
  const bool one_norm = !grouped || config.Int("num_ln_in_parallel_attn", 2) == 1;
  const bool biased = config.Bool("bias", false);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    AttentionSpec& attention = layer.attention;
    if (grouped) {
      attention.num_kv_heads = First(config, "num_kv_heads", "n_head_kv", attention.num_heads);
    } else if (config.Bool("multi_query", true)) {
      attention.num_kv_heads = 1;
    }
    attention.qkv_bias = attention.out_bias = layer.mlp.bias = biased;
    layer.mlp.gated = false;
    layer.mlp.activation = ReadActivation(config, "activation", "gelu");
    layer.residual = !parallel  ? Residual::kPreNorm
                     : one_norm ? Residual::kParallel
                                : Residual::kParallelNorms;
  });
  if (!config.Bool("alibi", false)) return ReadRopes(config, spec);
  // Added before the scores are scaled.
  ForEachLayer(spec, [](LayerSpec& layer) {
    layer.attention.alibi_scale = 1.0 / std::sqrt(static_cast<double>(layer.attention.head_dim));
  });
}

}  // namespace

Family FalconFamily() {
  return {.name = "falcon", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
