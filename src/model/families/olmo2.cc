#include "model/families/olmo2.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kOlmo2 = {"Olmo2ForCausalLM"};
constexpr std::array<std::string_view, 1> kOlmo3 = {"Olmo3ForCausalLM"};

constexpr std::array<RoleName, 2> kNames = {{
    {WeightRole::kInputNorm, "model.layers.{}.post_attention_layernorm"},
    {WeightRole::kPostNorm, "model.layers.{}.post_feedforward_layernorm"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return NamedSource(spec, id, kNames);
}

void ReadBlocks(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_epsilon = 1e-5}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.residual = Residual::kPostNorm;
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("attention_bias", false);
    layer.attention.head_norm = HeadNorm::kAllHeads;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
}

void ReadOlmo2(const JsonFields& config, ModelSpec& spec) {
  ReadBlocks(config, spec);
  ReadRopes(config, spec);
}

// Three of four layers have a window; only the others are scaled.
void ReadOlmo3(const JsonFields& config, ModelSpec& spec) {
  ReadBlocks(config, spec);
  ReadInterleavedWindows(config, 4, 4096, spec);
  ReadRopesByKind(config, {.local = config.Number("rope_theta", RopeSpec().theta)}, spec);
}

}  // namespace

Family Olmo2Family() {
  return {.name = "olmo2", .architectures = kOlmo2, .read = ReadOlmo2, .source = Source};
}
Family Olmo3Family() {
  return {.name = "olmo3", .architectures = kOlmo3, .read = ReadOlmo3, .source = Source};
}

}  // namespace tandem
