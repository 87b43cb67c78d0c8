#include "model/families/gptj.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"GPTJForCausalLM"};

constexpr std::array<RoleName, 10> kNames = {{
    {WeightRole::kEmbedding, "transformer.wte"},
    {WeightRole::kInputNorm, "transformer.h.{}.ln_1"},
    {WeightRole::kQuery, "transformer.h.{}.attn.q_proj"},
    {WeightRole::kKey, "transformer.h.{}.attn.k_proj"},
    {WeightRole::kValue, "transformer.h.{}.attn.v_proj"},
    {WeightRole::kAttentionOut, "transformer.h.{}.attn.out_proj"},
    {WeightRole::kUp, "transformer.h.{}.mlp.fc_in"},
    {WeightRole::kDown, "transformer.h.{}.mlp.fc_out"},
    {WeightRole::kFinalNorm, "transformer.ln_f"},
    {WeightRole::kHead, "lm_head"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return NamedSource(spec, id, kNames);
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.hidden = "n_embd",
             .layers = "n_layer",
             .heads = "n_head",
             .kv_heads = "n_head",
             .intermediate = "n_inner",
             .positions = "n_positions",
             .epsilon = "layer_norm_epsilon",
             .default_epsilon = 1e-5,
             .default_intermediate = true},
            spec);
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = true;
  spec.head_bias = true;
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.residual = Residual::kParallel;
    const int64_t dim = layer.attention.head_dim;
    layer.attention.rope = {.dim = config.Int("rotary_dim", dim), .interleaved = true};
    layer.mlp.gated = false;
    layer.mlp.bias = true;
    layer.mlp.activation = ReadActivation(config, "activation_function", "gelu_new");
  });
}

}  // namespace

Family GptJFamily() {
  return {.name = "gptj", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
