#include "model/families/phi3.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"Phi3ForCausalLM"};

constexpr std::array<RoleName, 5> kNames = {{
    {WeightRole::kQuery, "model.layers.{}.self_attn.qkv_proj"},
    {WeightRole::kKey, "model.layers.{}.self_attn.qkv_proj"},
    {WeightRole::kValue, "model.layers.{}.self_attn.qkv_proj"},
    {WeightRole::kGate, "model.layers.{}.mlp.gate_up_proj"},
    {WeightRole::kUp, "model.layers.{}.mlp.gate_up_proj"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  TensorSource source = StackedQkvSource(spec, id, kNames);
  if (RowOf(id.role).pack == WeightPack::kGateUp) {
    const int64_t neurons = spec.layer(id.layer).mlp.intermediate_size;
    source.rows = RowRange(id.role == WeightRole::kGate ? 0 : neurons, neurons, 2 * neurons);
  }
  return source;
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 4096, .default_epsilon = 1e-5}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  ReadWindows(config, spec);
}

}  // namespace

Family Phi3Family() {
  return {.name = "phi3", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
