#include "model/families/gemma.h"

#include <array>
#include <cmath>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kGemma = {"GemmaForCausalLM"};
constexpr std::array<std::string_view, 1> kGemma2 = {"Gemma2ForCausalLM"};
constexpr std::array<std::string_view, 1> kGemma3 = {"Gemma3ForCausalLM"};

// Of Gemma 2 and 3, whose blocks have a norm on both sides.
constexpr std::array<RoleName, 3> kSandwichNames = {{
    {WeightRole::kAttentionOutNorm, "model.layers.{}.post_attention_layernorm"},
    {WeightRole::kPostNorm, "model.layers.{}.pre_feedforward_layernorm"},
    {WeightRole::kMlpOutNorm, "model.layers.{}.post_feedforward_layernorm"},
}};

TensorSource SandwichSource(const ModelSpec& spec, const WeightId& id) {
  return NamedSource(spec, id, kSandwichNames);
}

// What all have: norms with 1 + weight, embeddings times sqrt(hidden), GeGLU.
void ReadCommon(const JsonFields& config, std::string_view activation, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 8192, .default_tied = true}, spec);
  spec.norm.weight_offset = 1.0;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("attention_bias", false);
    layer.mlp.activation = ReadActivation(config, activation, "gelu_pytorch_tanh");
  });
}

void ReadGemma(const JsonFields& config, ModelSpec& spec) {
  // Early configs say "gelu" and mean its approximation; the code has used the newer key since.
  ReadCommon(config, "hidden_activation", spec);
  ReadRopes(config, spec);
}

void ReadSandwich(const JsonFields& config, double default_scalar, ModelSpec& spec) {
  ReadCommon(config, "hidden_activation", spec);
  const double scale = 1.0 / std::sqrt(config.Number("query_pre_attn_scalar", default_scalar));
  const double cap = config.Number("attn_logit_softcapping", 0.0);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.residual = Residual::kSandwich;
    layer.attention.scale = scale;
    layer.attention.soft_cap = cap;
  });
  spec.logit_cap = config.Number("final_logit_softcapping", 0.0);
}

void ReadGemma2(const JsonFields& config, ModelSpec& spec) {
  ReadSandwich(config, 256.0, spec);
  ReadRopes(config, spec);
  ReadInterleavedWindows(config, 2, 4096, spec);
}

// Sliding layers have a base of their own and no scaling.
void ReadGemma3(const JsonFields& config, ModelSpec& spec) {
  ReadSandwich(config, 256.0, spec);
  ReadInterleavedWindows(config, 6, 4096, spec);
  const double local = config.Number("rope_local_base_freq", 10000.0);
  if (local <= 0.0) return Refuse(config, "rope_local_base_freq", "; it must be positive");
  ReadRopesByKind(config, local, spec);
  ForEachLayer(spec, [](LayerSpec& layer) { layer.attention.head_norm = HeadNorm::kHead; });
}

}  // namespace

Family GemmaFamily() { return {.name = "gemma", .architectures = kGemma, .read = ReadGemma}; }
Family Gemma2Family() {
  return {.name = "gemma2", .architectures = kGemma2, .read = ReadGemma2, .source = SandwichSource};
}
Family Gemma3Family() {
  return {.name = "gemma3", .architectures = kGemma3, .read = ReadGemma3, .source = SandwichSource};
}

}  // namespace tandem
