#include "model/families/olmo2.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"Olmo2ForCausalLM"};

constexpr std::array<RoleName, 2> kNames = {{
    {WeightRole::kInputNorm, "model.layers.{}.post_attention_layernorm"},
    {WeightRole::kPostNorm, "model.layers.{}.post_feedforward_layernorm"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return NamedSource(spec, id, kNames);
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_epsilon = 1e-5}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.residual = Residual::kPostNorm;
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("attention_bias", false);
    layer.attention.head_norm = HeadNorm::kAllHeads;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
}

}  // namespace

Family Olmo2Family() {
  return {.name = "olmo2", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
