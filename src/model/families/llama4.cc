#include "model/families/llama4.h"

#include <algorithm>
#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kArchitectures = {"Llama4ForCausalLM",
                                                            "Llama4ForConditionalGeneration"};

constexpr std::array<RoleName, 7> kNames = {{
    {WeightRole::kRouter, "model.layers.{}.feed_forward.router"},
    {WeightRole::kExpertGate, "model.layers.{}.feed_forward.experts.gate_up_proj"},
    {WeightRole::kExpertUp, "model.layers.{}.feed_forward.experts.gate_up_proj"},
    {WeightRole::kExpertDown, "model.layers.{}.feed_forward.experts.down_proj"},
    {WeightRole::kGate, "model.layers.{}.feed_forward.gate_proj"},
    {WeightRole::kUp, "model.layers.{}.feed_forward.up_proj"},
    {WeightRole::kDown, "model.layers.{}.feed_forward.down_proj"},
}};
constexpr std::array<RoleName, 3> kSharedNames = {{
    {WeightRole::kGate, "model.layers.{}.feed_forward.shared_expert.gate_proj"},
    {WeightRole::kUp, "model.layers.{}.feed_forward.shared_expert.up_proj"},
    {WeightRole::kDown, "model.layers.{}.feed_forward.shared_expert.down_proj"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  const bool shared =
      std::ranges::find(kSharedNames, id.role, &RoleName::role) != kSharedNames.end() &&
      spec.has_experts(id.layer);
  TensorSource source =
      NamedSource(spec, id, shared ? std::span<const RoleName>(kSharedNames) : kNames);
  // One tensor holds all experts of a layer, transposed, with the rows of gate before those of up.
  if (RowOf(id.role).per_expert && id.part == WeightPart::kWeight) {
    source.name.erase(source.name.rfind('.'));
    source.expert = id.expert;
    source.transposed = true;
    const int64_t rows = RowOf(id.role).rows(spec, id.layer);
    if (id.role == WeightRole::kExpertGate) source.rows = RowRange(0, rows, 2 * rows);
    if (id.role == WeightRole::kExpertUp) source.rows = RowRange(rows, rows, 2 * rows);
  }
  return source;
}

// moe_layers lists the layers with experts; without it they are every
// interleave_moe_layer_step-th.
bool HasExperts(const JsonFields& config, int64_t layer) {
  if (config.Has("moe_layers")) {
    const std::vector<int64_t> listed = config.Ints("moe_layers");
    return std::ranges::find(listed, layer) != listed.end();
  }
  const int64_t step = config.Int("interleave_moe_layer_step", 1);
  if (step < 1) config.Fail("interleave_moe_layer_step", "must be at least 1");
  return step >= 1 && (layer + 1) % step == 0;
}

// no_rope_layers has a 1 for each layer that turns; without it every fourth does not.
std::vector<bool> ReadTurns(const JsonFields& config, int64_t layers) {
  const int64_t step = config.Int("no_rope_layer_interval", 4);
  if (step < 1) config.Fail("no_rope_layer_interval", "must be at least 1");
  const std::vector<int64_t> listed = config.Ints("no_rope_layers");
  if (!listed.empty() && static_cast<int64_t>(listed.size()) != layers) {
    config.Fail("no_rope_layers", "must have a number for each layer");
  }
  std::vector<bool> turns;
  for (int64_t i = 0; i < layers; ++i) {
    const auto index = static_cast<size_t>(i);
    turns.push_back(index < listed.size() ? listed[index] != 0 : step < 1 || (i + 1) % step != 0);
  }
  return turns;
}

// Layers that turn see chunks, and may norm queries and keys; the others see everything, and
// their queries grow with the position.
void ReadAttention(const JsonFields& config, ModelSpec& spec) {
  const RopeSpec none;
  ReadRopes(config, spec);
  const bool biased = config.Bool("attention_bias", false);
  const int64_t chunk = config.Int("attention_chunk_size", 8192);
  const HeadNorm norm = config.Bool("use_qk_norm", true) ? HeadNorm::kUnweighted : HeadNorm::kNone;
  QueryGrowth growth;
  if (config.Bool("attn_temperature_tuning", true)) {
    growth = {.kind = QueryGrowth::Kind::kSteps,
              .length = config.Int("floor_scale", 8192),
              .factor = config.Number("attn_scale", 0.1)};
  }
  const std::vector<bool> turns = ReadTurns(config, spec.num_layers());
  for (size_t i = 0; i < turns.size(); ++i) {
    AttentionSpec& attention = spec.layers[i].attention;
    attention.qkv_bias = attention.out_bias = biased;
    attention.rope.interleaved = true;
    if (turns[i]) {
      attention.chunk = chunk;
      attention.head_norm = norm;
    } else {
      attention.rope = none;
      attention.growth = growth;
    }
  }
}

void Read(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.intermediate = "intermediate_size_mlp",
             .default_positions = 131072,
             .default_epsilon = 1e-5},
            spec);
  const ops::Activation activation = ReadActivation(config, "hidden_act", "silu");
  const MlpSpec expert = {.intermediate_size = config.Int("intermediate_size"),
                          .activation = activation};
  const MoeSpec moe = {
      .num_experts = config.Int("num_local_experts", 16),
      .expert = expert,
      .routing = {.function = ops::RoutingRule::Function::kSigmoid,
                  .experts_per_token = ReadCount(config, "num_experts_per_tok", 1)},
      .scales_inputs = true};
  for (int64_t i = 0; i < spec.num_layers(); ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.mlp.activation = activation;
    if (!HasExperts(config, i)) continue;
    layer.moe = moe;
    layer.mlp = expert;  // the shared one
  }
  ReadAttention(config, spec);
}

}  // namespace

Family Llama4Family() {
  return {.name = "llama4", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
