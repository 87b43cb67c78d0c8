#include "model/families/gemma.h"

#include <array>
#include <cmath>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kGemma = {"GemmaForCausalLM"};
constexpr std::array<std::string_view, 1> kGemma2 = {"Gemma2ForCausalLM"};
constexpr std::array<std::string_view, 2> kGemma3 = {"Gemma3ForCausalLM",
                                                     "Gemma3ForConditionalGeneration"};

// Of Gemma 2 and 3, whose blocks have a norm on both sides.
constexpr std::array<RoleName, 3> kSandwichNames = {{
    {WeightRole::kAttentionOutNorm, "model.layers.{}.post_attention_layernorm"},
    {WeightRole::kPostNorm, "model.layers.{}.pre_feedforward_layernorm"},
    {WeightRole::kMlpOutNorm, "model.layers.{}.post_feedforward_layernorm"},
}};

TensorSource SandwichSource(const ModelSpec& spec, const WeightId& id) {
  return NamedSource(spec, id, kSandwichNames);
}

constexpr SizeKeys kSizes = {.default_positions = 8192, .default_tied = true};
constexpr SizeKeys kGemma3Sizes = {.default_vocab = 262208,
                                   .default_heads = 8,
                                   .default_kv_heads = 4,
                                   .default_head_dim = 256,
                                   .default_positions = 131072,
                                   .default_tied = true};

// What all have: norms with 1 + weight, embeddings times sqrt(hidden), GeGLU.
void ReadCommon(const JsonFields& config, const SizeKeys& keys, ModelSpec& spec) {
  ReadSizes(config, keys, spec);
  spec.norm.weight_offset = 1.0;
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("attention_bias", false);
    layer.mlp.activation = ReadActivation(config, "hidden_activation", "gelu_pytorch_tanh");
  });
}

void ReadGemma(const JsonFields& config, ModelSpec& spec) {
  // Early configs say "gelu" and mean its approximation; the code has used the newer key since.
  ReadCommon(config, kSizes, spec);
  ReadRopes(config, spec);
}

void ReadSandwich(const JsonFields& config, const SizeKeys& keys, ModelSpec& spec) {
  ReadCommon(config, keys, spec);
  const double scale = 1.0 / std::sqrt(config.Number("query_pre_attn_scalar", 256.0));
  const double cap = config.Number("attn_logit_softcapping", 0.0);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.residual = Residual::kSandwich;
    layer.attention.scale = scale;
    layer.attention.soft_cap = cap;
  });
  spec.logit_cap = config.Number("final_logit_softcapping", 0.0);
}

void ReadGemma2(const JsonFields& config, ModelSpec& spec) {
  ReadSandwich(config, kSizes, spec);
  ReadRopes(config, spec);
  ReadInterleavedWindows(config, 2, 4096, spec);
}

// Sliding layers have a base of their own and no scaling. The config of a model that sees says only
// what differs from its code's defaults. Its context is that of the scaled rotation.
void ReadGemma3(const JsonFields& config, ModelSpec& spec) {
  ReadSandwich(config, kGemma3Sizes, spec);
  const int64_t positions = spec.max_positions;
  ReadInterleavedWindows(config, 6, 4096, spec);
  const double local = config.Number("rope_local_base_freq", 10000.0);
  if (local <= 0.0) return Refuse(config, "rope_local_base_freq", "; it must be positive");
  ReadRopesByKind(config, {.whole = 1e6, .local = local}, spec);
  spec.max_positions = positions;
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
