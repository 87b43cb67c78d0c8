#include "model/families/qwen.h"

#include <algorithm>
#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kQwen = {"QWenLMHeadModel"};
constexpr std::array<std::string_view, 1> kQwen2 = {"Qwen2ForCausalLM"};
constexpr std::array<std::string_view, 1> kQwen3 = {"Qwen3ForCausalLM"};
constexpr std::array<std::string_view, 1> kQwen2Moe = {"Qwen2MoeForCausalLM"};
constexpr std::array<std::string_view, 1> kQwen3Moe = {"Qwen3MoeForCausalLM"};

// Qwen 1 calls the gate w2 and stacks q, k and v.
constexpr std::array<RoleName, 12> kQwenNames = {{
    {WeightRole::kEmbedding, "transformer.wte"},
    {WeightRole::kInputNorm, "transformer.h.{}.ln_1"},
    {WeightRole::kQuery, "transformer.h.{}.attn.c_attn"},
    {WeightRole::kKey, "transformer.h.{}.attn.c_attn"},
    {WeightRole::kValue, "transformer.h.{}.attn.c_attn"},
    {WeightRole::kAttentionOut, "transformer.h.{}.attn.c_proj"},
    {WeightRole::kPostNorm, "transformer.h.{}.ln_2"},
    {WeightRole::kGate, "transformer.h.{}.mlp.w2"},
    {WeightRole::kUp, "transformer.h.{}.mlp.w1"},
    {WeightRole::kDown, "transformer.h.{}.mlp.c_proj"},
    {WeightRole::kFinalNorm, "transformer.ln_f"},
    {WeightRole::kHead, "lm_head"},
}};

TensorSource QwenSource(const ModelSpec& spec, const WeightId& id) {
  return StackedQkvSource(spec, id, kQwenNames);
}

TensorSource Qwen2MoeSource(const ModelSpec& spec, const WeightId& id) {
  return SourceWithShared(spec, id, "shared_expert");
}

// Beyond the trained length, seq_length, dynamic NTK changes the base and log-n scales queries;
// without them it is the longest context.
void ReadQwen(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.kv_heads = "num_attention_heads",
             .head_dim = "kv_channels",
             .positions = "seq_length",
             .epsilon = "layer_norm_epsilon"},
            spec);
  if (config.Number("rotary_pct", 1.0) != 1.0) Refuse(config, "rotary_pct", "; it must be 1");
  if (!config.Bool("scale_attn_weights", true)) Refuse(config, "scale_attn_weights", "");
  RopeSpec rope = {.theta = config.Number("rotary_emb_base", 10000.0)};
  QueryGrowth growth;
  const int64_t trained = spec.max_positions;
  if (config.Bool("use_dynamic_ntk", true)) {
    rope.scaling = {.kind = RopeScaling::Kind::kNtkSteps, .original_max_positions = trained};
    spec.max_positions = std::max(trained, config.Int("max_position_embeddings", trained));
  }
  if (config.Bool("use_logn_attn", true)) {
    growth = {.kind = QueryGrowth::Kind::kLogN, .length = trained};
  }
  const bool biased = !config.Bool("no_bias", true);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = true;
    layer.attention.out_bias = layer.mlp.bias = biased;
    layer.attention.rope = rope;
    layer.attention.rope.dim = layer.attention.head_dim;
    layer.attention.growth = growth;
    layer.mlp.intermediate_size /= 2;  // of gate and up together
  });
}

void ReadQwen2(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 32768}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = true;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  if (config.Bool("use_sliding_window", false)) ReadWindows(config, spec);
}

void ReadQwen3(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 32768}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("attention_bias", false);
    layer.attention.head_norm = HeadNorm::kHead;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  if (config.Bool("use_sliding_window", false)) ReadWindows(config, spec);
}

// Gives the sparse layers experts, beside which there is an MLP of `shared` neurons.
void ReadQwenExperts(const JsonFields& config, int64_t shared, ModelSpec& spec) {
  for (int64_t i = 0; i < spec.num_layers(); ++i) {
    if (!IsSparseLayer(config, i)) continue;
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.moe = {.num_experts = config.Int("num_experts"),
                 .expert = {.intermediate_size = config.Int("moe_intermediate_size"),
                            .activation = layer.mlp.activation},
                 .routing = {.experts_per_token = ReadCount(config, "num_experts_per_tok", 0),
                             .renormalise = config.Bool("norm_topk_prob", false)},
                 .shared_gate = shared > 0};
    layer.mlp.intermediate_size = shared;
  }
}

void ReadQwen2Moe(const JsonFields& config, ModelSpec& spec) {
  ReadQwen2(config, spec);
  if (!config.Bool("qkv_bias", true)) {
    ForEachLayer(spec, [](LayerSpec& layer) { layer.attention.qkv_bias = false; });
  }
  constexpr std::string_view kShared = "shared_expert_intermediate_size";
  const int64_t shared = config.Int(kShared);
  if (shared < 0 || shared > kMaxWidth) return Refuse(config, kShared, "");
  ReadQwenExperts(config, shared, spec);
}

void ReadQwen3Moe(const JsonFields& config, ModelSpec& spec) {
  ReadQwen3(config, spec);
  ReadQwenExperts(config, /*shared=*/0, spec);
}

}  // namespace

Family QwenFamily() {
  return {.name = "qwen", .architectures = kQwen, .read = ReadQwen, .source = QwenSource};
}
Family Qwen2Family() {
  return {.name = "qwen2",
          .architectures = kQwen2,
          .read = ReadQwen2,
          .checkpoint = {.architecture = kQwen2.front(),
                         .qwen_type = "qwen2",
                         .qkv_bias = true,
                         .out_bias = false}};
}
Family Qwen3Family() {
  return {.name = "qwen3",
          .architectures = kQwen3,
          .read = ReadQwen3,
          .checkpoint = {.architecture = kQwen3.front(),
                         .qwen_type = "qwen3",
                         .out_bias = false,
                         .head_norm = HeadNorm::kHead}};
}
Family Qwen2MoeFamily() {
  return {.name = "qwen2_moe",
          .architectures = kQwen2Moe,
          .read = ReadQwen2Moe,
          .source = Qwen2MoeSource};
}
Family Qwen3MoeFamily() {
  return {.name = "qwen3_moe", .architectures = kQwen3Moe, .read = ReadQwen3Moe};
}

}  // namespace tandem
