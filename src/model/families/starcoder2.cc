#include "model/families/starcoder2.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"Starcoder2ForCausalLM"};

constexpr std::array<RoleName, 2> kNames = {{
    {WeightRole::kUp, "model.layers.{}.mlp.c_fc"},
    {WeightRole::kDown, "model.layers.{}.mlp.c_proj"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return NamedSource(spec, id, kNames);
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.epsilon = "norm_epsilon",
             .default_positions = 4096,
             .default_epsilon = 1e-5,
             .default_tied = true},
            spec);
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = true;
  const bool biased = config.Bool("use_bias", true);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = layer.mlp.bias = biased;
    layer.mlp.gated = false;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "gelu_pytorch_tanh");
  });
  ReadRopes(config, spec);
  ReadWindows(config, spec);
}

}  // namespace

Family StarCoder2Family() {
  return {.name = "starcoder2", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
