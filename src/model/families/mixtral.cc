#include "model/families/mixtral.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"MixtralForCausalLM"};

constexpr std::array<RoleName, 4> kNames = {{
    {WeightRole::kRouter, "model.layers.{}.block_sparse_moe.gate"},
    {WeightRole::kExpertGate, "model.layers.{}.block_sparse_moe.experts.{}.w1"},
    {WeightRole::kExpertUp, "model.layers.{}.block_sparse_moe.experts.{}.w3"},
    {WeightRole::kExpertDown, "model.layers.{}.block_sparse_moe.experts.{}.w2"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return NamedSource(spec, id, kNames);
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 131072, .default_epsilon = 1e-5}, spec);
  const int64_t experts = config.Int("num_local_experts", 8);
  const int32_t chosen = ReadCount(config, "num_experts_per_tok", 2);
  const ops::Activation activation = ReadActivation(config, "hidden_act", "silu");
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.moe = {
        .num_experts = experts,
        .expert = {.intermediate_size = layer.mlp.intermediate_size, .activation = activation},
        .routing = {.experts_per_token = chosen, .renormalise = true}};
    layer.mlp.intermediate_size = 0;
  });
  ReadRopes(config, spec);
  ReadWindows(config, spec);
}

}  // namespace

Family MixtralFamily() {
  return {.name = "mixtral", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
