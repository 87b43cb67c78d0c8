#include "model/families/opt.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"OPTForCausalLM"};
// Rows of the learned positions before that of position 0.
constexpr int64_t kFirstPosition = 2;

constexpr std::array<RoleName, 12> kNames = {{
    {WeightRole::kEmbedding, "model.decoder.embed_tokens"},
    {WeightRole::kPositions, "model.decoder.embed_positions"},
    {WeightRole::kInputNorm, "model.decoder.layers.{}.self_attn_layer_norm"},
    {WeightRole::kQuery, "model.decoder.layers.{}.self_attn.q_proj"},
    {WeightRole::kKey, "model.decoder.layers.{}.self_attn.k_proj"},
    {WeightRole::kValue, "model.decoder.layers.{}.self_attn.v_proj"},
    {WeightRole::kAttentionOut, "model.decoder.layers.{}.self_attn.out_proj"},
    {WeightRole::kPostNorm, "model.decoder.layers.{}.final_layer_norm"},
    {WeightRole::kUp, "model.decoder.layers.{}.fc1"},
    {WeightRole::kDown, "model.decoder.layers.{}.fc2"},
    {WeightRole::kFinalNorm, "model.decoder.final_layer_norm"},
    {WeightRole::kHead, "lm_head"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  TensorSource source = NamedSource(spec, id, kNames);
  if (id.role == WeightRole::kPositions) {
    source.rows = RowRange(kFirstPosition, spec.position_rows, spec.position_rows + kFirstPosition);
  }
  return source;
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.kv_heads = "num_attention_heads",
             .intermediate = "ffn_dim",
             .epsilon = "layer_norm_epsilon",
             .default_epsilon = 1e-5,
             .default_tied = true},
            spec);
  // OPT-350M norms after each block and projects its embedding.
  if (!config.Bool("do_layer_norm_before", true)) Refuse(config, "do_layer_norm_before", "");
  if (config.Int("word_embed_proj_dim", spec.hidden_size) != spec.hidden_size) {
    Refuse(config, "word_embed_proj_dim", "; it must be hidden_size");
  }
  if (config.Bool("_remove_final_layer_norm", false))
    Refuse(config, "_remove_final_layer_norm", "");
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = config.Bool("layer_norm_elementwise_affine", true);
  if (!spec.norm.bias) Refuse(config, "layer_norm_elementwise_affine", "; it must be true");
  spec.position_rows = spec.max_positions;
  const bool biased = config.Bool("enable_bias", true);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = layer.mlp.bias = biased;
    layer.mlp.gated = false;
    layer.mlp.activation = ReadActivation(config, "activation_function", "relu");
  });
}

}  // namespace

Family OptFamily() {
  return {.name = "opt",
          .architectures = kArchitectures,
          .read = Read,
          .source = Source,
          .optional_prefix = "model."};
}

}  // namespace tandem
