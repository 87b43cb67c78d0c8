#include "model/families/bloom.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

// The second wrote the folders of the first releases.
constexpr std::array<std::string_view, 2> kArchitectures = {"BloomForCausalLM", "BloomModel"};

constexpr std::array<RoleName, 12> kNames = {{
    {WeightRole::kEmbedding, "transformer.word_embeddings"},
    {WeightRole::kEmbeddingNorm, "transformer.word_embeddings_layernorm"},
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

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return GroupedQkvSource(spec, id, kNames);
}

void Read(const JsonFields& config, ModelSpec& spec) {
  const auto key = [&](std::string_view name, std::string_view old) {
    return config.Has(name) ? name : old;
  };
  const std::string_view heads = key("n_head", "num_attention_heads");
  ReadSizes(config,
            {.hidden = key("hidden_size", "n_embed"),
             .layers = key("n_layer", "num_hidden_layers"),
             .heads = heads,
             .kv_heads = heads,
             .intermediate = "n_inner",
             .positions = "seq_length",
             .epsilon = "layer_norm_epsilon",
             .default_epsilon = 1e-5,
             .default_tied = true,
             .default_intermediate = true},
            spec);
  if (config.Bool("apply_residual_connection_post_layernorm", false)) {
    Refuse(config, "apply_residual_connection_post_layernorm", "");
  }
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = spec.embedding_norm = true;
  ForEachLayer(spec, [](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = layer.mlp.bias = true;
    layer.attention.alibi_scale = 1.0;
    layer.mlp.gated = false;
    layer.mlp.activation = ops::Activation::kGeluTanh;
  });
}

}  // namespace

Family BloomFamily() {
  return {.name = "bloom",
          .architectures = kArchitectures,
          .read = Read,
          .source = Source,
          .optional_prefix = "transformer."};
}

}  // namespace tandem
