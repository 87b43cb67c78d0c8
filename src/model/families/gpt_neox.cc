#include "model/families/gpt_neox.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"GPTNeoXForCausalLM"};

constexpr std::array<RoleName, 11> kNames = {{
    {WeightRole::kEmbedding, "gpt_neox.embed_in"},
    {WeightRole::kInputNorm, "gpt_neox.layers.{}.input_layernorm"},
    {WeightRole::kQuery, "gpt_neox.layers.{}.attention.query_key_value"},
    {WeightRole::kKey, "gpt_neox.layers.{}.attention.query_key_value"},
    {WeightRole::kValue, "gpt_neox.layers.{}.attention.query_key_value"},
    {WeightRole::kAttentionOut, "gpt_neox.layers.{}.attention.dense"},
    {WeightRole::kPostNorm, "gpt_neox.layers.{}.post_attention_layernorm"},
    {WeightRole::kUp, "gpt_neox.layers.{}.mlp.dense_h_to_4h"},
    {WeightRole::kDown, "gpt_neox.layers.{}.mlp.dense_4h_to_h"},
    {WeightRole::kFinalNorm, "gpt_neox.final_layer_norm"},
    {WeightRole::kHead, "embed_out"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return GroupedQkvSource(spec, id, kNames);
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(
      config,
      {.kv_heads = "num_attention_heads", .epsilon = "layer_norm_eps", .default_epsilon = 1e-5},
      spec);
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = true;
  ReadRopes(config, spec);
  const double share = config.Number("rotary_pct", 0.25);
  if (!(share > 0.0 && share <= 1.0)) Refuse(config, "rotary_pct", "; it must be between 0 and 1");
  const bool parallel = config.Bool("use_parallel_residual", true);
  const bool biased = config.Bool("attention_bias", true);
  const double theta = config.Number("rotary_emb_base", 10000.0);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    AttentionSpec& attention = layer.attention;
    attention.rope.dim = static_cast<int64_t>(static_cast<double>(attention.head_dim) * share);
    attention.rope.theta = config.Number("rope_theta", theta);
    attention.qkv_bias = attention.out_bias = biased;
    layer.residual = parallel ? Residual::kParallelNorms : Residual::kPreNorm;
    layer.mlp.gated = false;
    layer.mlp.bias = true;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "gelu");
  });
}

}  // namespace

Family GptNeoXFamily() {
  return {.name = "gpt_neox", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
