#include "model/families/gpt_oss.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kArchitectures = {"GptOssForCausalLM"};

constexpr std::array<RoleName, 4> kNames = {{
    {WeightRole::kRouter, "model.layers.{}.mlp.router"},
    {WeightRole::kExpertGate, "model.layers.{}.mlp.experts.gate_up_proj"},
    {WeightRole::kExpertUp, "model.layers.{}.mlp.experts.gate_up_proj"},
    {WeightRole::kExpertDown, "model.layers.{}.mlp.experts.down_proj"},
}};

// One tensor holds all experts of a layer, with its rows of gate and up in turn. It is no module
// of its own, so that the bias is "gate_up_proj_bias" beside "gate_up_proj"; unquantized, it is
// stored transposed.
TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  TensorSource source = NamedSource(spec, id, kNames);
  if (!RowOf(id.role).per_expert) return source;
  const size_t suffix = source.name.rfind('.');
  if (id.part == WeightPart::kBias) source.name[suffix] = '_';
  if (id.part == WeightPart::kWeight) {
    source.name.erase(suffix);
    source.transposed = true;
  }
  source.expert = id.expert;
  const int64_t rows = RowOf(id.role).rows(spec, id.layer);
  if (id.role == WeightRole::kExpertGate) source.rows = {0, 1, 2, 2 * rows};
  if (id.role == WeightRole::kExpertUp) source.rows = {1, 1, 2, 2 * rows};
  return source;
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 131072, .default_epsilon = 1e-5}, spec);
  const bool biased = config.Bool("attention_bias", true);
  const MoeSpec moe = {
      .num_experts = config.Int("num_local_experts", 128),
      .expert = {.intermediate_size = config.Int("intermediate_size"),
                 .activation = ops::Activation::kClampedSwiglu,
                 .bias = true},
      .limit = config.Number("swiglu_limit", 7.0),
      .routing = {.chosen_first = true,
                  .experts_per_token = ReadCount(config, "num_experts_per_tok", 4)},
      .router_bias = true};
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = biased;
    layer.attention.sinks = true;
    layer.mlp.intermediate_size = 0;
    layer.moe = moe;
  });
  ReadRopes(config, spec);
  ReadInterleavedWindows(config, 2, 128, spec);
}

}  // namespace

Family GptOssFamily() {
  return {.name = "gpt_oss", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
