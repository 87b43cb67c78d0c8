#include "model/families/internlm.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kInternLm = {"InternLMForCausalLM"};
constexpr std::array<std::string_view, 1> kInternLm2 = {"InternLM2ForCausalLM"};

constexpr std::array<RoleName, 11> kInternLm2Names = {{
    {WeightRole::kEmbedding, "model.tok_embeddings"},
    {WeightRole::kInputNorm, "model.layers.{}.attention_norm"},
    {WeightRole::kQuery, "model.layers.{}.attention.wqkv"},
    {WeightRole::kKey, "model.layers.{}.attention.wqkv"},
    {WeightRole::kValue, "model.layers.{}.attention.wqkv"},
    {WeightRole::kAttentionOut, "model.layers.{}.attention.wo"},
    {WeightRole::kPostNorm, "model.layers.{}.ffn_norm"},
    {WeightRole::kGate, "model.layers.{}.feed_forward.w1"},
    {WeightRole::kUp, "model.layers.{}.feed_forward.w3"},
    {WeightRole::kDown, "model.layers.{}.feed_forward.w2"},
    {WeightRole::kHead, "output"},
}};

TensorSource InternLm2Source(const ModelSpec& spec, const WeightId& id) {
  return GroupedQkvSource(spec, id, kInternLm2Names);
}

void ReadCommon(const JsonFields& config, bool default_bias, ModelSpec& spec) {
  ReadSizes(config, {}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = config.Bool("bias", default_bias);
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
}

// Later revisions describe the rotation in an object of their own; its factor is 1 unless given.
void ReadInternLm(const JsonFields& config, ModelSpec& spec) {
  ReadCommon(config, true, spec);
  RopeSpec rope;
  if (const auto rotary = config.Object("rotary")) {
    rope.theta = rotary->Number("base", rope.theta);
    const std::string type = rotary->Text("type", "origin");
    if (type == "dynamic") {
      rope.scaling = {.kind = RopeScaling::Kind::kDynamic,
                      .factor = rotary->Number("scaling_factor", 1.0),
                      .original_max_positions = spec.max_positions};
    } else if (type != "origin") {
      Refuse(*rotary, "type", "; supported are origin, dynamic");
    }
  }
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.rope = rope;
    layer.attention.rope.dim = layer.attention.head_dim;
  });
}

void ReadInternLm2(const JsonFields& config, ModelSpec& spec) {
  ReadCommon(config, true, spec);
  ReadRopes(config, spec);
}

}  // namespace

Family InternLmFamily() {
  return {.name = "internlm",
          .architectures = kInternLm,
          .read = ReadInternLm,
          .checkpoint = {.architecture = kInternLm.front()}};
}
Family InternLm2Family() {
  return {.name = "internlm2",
          .architectures = kInternLm2,
          .read = ReadInternLm2,
          .source = InternLm2Source,
          .checkpoint = {.architecture = kInternLm2.front()}};
}

}  // namespace tandem
