#include "model/families/mpt.h"

#include <array>
#include <bit>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kArchitectures = {"MptForCausalLM", "MPTForCausalLM"};

constexpr std::array<RoleName, 10> kNames = {{
    {WeightRole::kEmbedding, "transformer.wte"},
    {WeightRole::kInputNorm, "transformer.blocks.{}.norm_1"},
    {WeightRole::kQuery, "transformer.blocks.{}.attn.Wqkv"},
    {WeightRole::kKey, "transformer.blocks.{}.attn.Wqkv"},
    {WeightRole::kValue, "transformer.blocks.{}.attn.Wqkv"},
    {WeightRole::kAttentionOut, "transformer.blocks.{}.attn.out_proj"},
    {WeightRole::kPostNorm, "transformer.blocks.{}.norm_2"},
    {WeightRole::kUp, "transformer.blocks.{}.ffn.up_proj"},
    {WeightRole::kDown, "transformer.blocks.{}.ffn.down_proj"},
    {WeightRole::kFinalNorm, "transformer.norm_f"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return StackedQkvSource(spec, id, kNames);
}

void ReadAttention(const JsonFields& config, ModelSpec& spec) {
  if (!config.Bool("alibi", true)) Refuse(config, "alibi", "; it must be true");
  // Slopes of other ranges, and those of numbers of heads that are no power of two, are MPT's own.
  if (config.Number("alibi_bias_max", 8.0) != 8.0)
    Refuse(config, "alibi_bias_max", "; it must be 8");
  for (const char* key : {"qk_ln", "prefix_lm", "attn_uses_sequence_id"}) {
    if (config.Bool(key, false)) Refuse(config, key, "");
  }
  if (config.Has("clip_qkv")) Refuse(config, "clip_qkv", "");
  const std::string type = config.Text("attn_type", "multihead_attention");
  if (type != "multihead_attention")
    Refuse(config, "attn_type", "; it must be multihead_attention");
  const double scale = config.Number("softmax_scale", 0.0);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.scale = scale;
    layer.attention.alibi_scale = 1.0;
  });
}

// A model without biases, those of its layer norms included.
void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.hidden = "d_model",
             .layers = "n_layers",
             .heads = "n_heads",
             .kv_heads = "n_heads",
             .positions = "max_seq_len",
             .epsilon = "layer_norm_epsilon",
             .default_epsilon = 1e-5,
             .default_tied = true,
             .default_intermediate = true},
            spec);
  spec.norm.kind = NormSpec::Kind::kLayer;
  if (!config.Bool("no_bias", true)) Refuse(config, "no_bias", "; it must be true");
  if (config.Has("logit_scale")) Refuse(config, "logit_scale", "");
  const int64_t expansion = config.Int("expansion_ratio", 4);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.mlp.intermediate_size = expansion * spec.hidden_size;
    layer.mlp.gated = false;
    layer.mlp.activation = ops::Activation::kGelu;
    if (!std::has_single_bit(static_cast<uint64_t>(layer.attention.num_heads))) {
      Refuse(config, "n_heads", "; it must be a power of two");
    }
  });
  if (const auto attention = config.Object("attn_config")) ReadAttention(*attention, spec);
}

}  // namespace

Family MptFamily() {
  return {.name = "mpt", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
