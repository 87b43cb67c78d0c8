#include "model/families/glm.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kChatGlm = {"ChatGLMModel",
                                                      "ChatGLMForConditionalGeneration"};
constexpr std::array<std::string_view, 9> kChatGlmVersions = {
    "chatglm2_6b",     "chatglm2_6b_32k", "chatglm2", "chatglm3_6b", "chatglm3_6b_base",
    "chatglm3_6b_32k", "chatglm3",        "glm4",     "chatglm"};
constexpr std::string_view kVersion = "chatglm_model_version";
constexpr std::array<std::string_view, 1> kGlm = {"GlmForCausalLM"};
constexpr std::array<std::string_view, 1> kGlm4 = {"Glm4ForCausalLM"};
constexpr std::array<std::string_view, 1> kGlm4Moe = {"Glm4MoeForCausalLM"};

constexpr std::array<RoleName, 12> kChatGlmNames = {{
    {WeightRole::kEmbedding, "transformer.embedding.word_embeddings"},
    {WeightRole::kInputNorm, "transformer.encoder.layers.{}.input_layernorm"},
    {WeightRole::kQuery, "transformer.encoder.layers.{}.self_attention.query_key_value"},
    {WeightRole::kKey, "transformer.encoder.layers.{}.self_attention.query_key_value"},
    {WeightRole::kValue, "transformer.encoder.layers.{}.self_attention.query_key_value"},
    {WeightRole::kAttentionOut, "transformer.encoder.layers.{}.self_attention.dense"},
    {WeightRole::kPostNorm, "transformer.encoder.layers.{}.post_attention_layernorm"},
    {WeightRole::kGate, "transformer.encoder.layers.{}.mlp.dense_h_to_4h"},
    {WeightRole::kUp, "transformer.encoder.layers.{}.mlp.dense_h_to_4h"},
    {WeightRole::kDown, "transformer.encoder.layers.{}.mlp.dense_4h_to_h"},
    {WeightRole::kFinalNorm, "transformer.encoder.final_layernorm"},
    {WeightRole::kHead, "transformer.output_layer"},
}};

constexpr std::array<RoleName, 2> kGlmNames = {{
    {WeightRole::kGate, "model.layers.{}.mlp.gate_up_proj"},
    {WeightRole::kUp, "model.layers.{}.mlp.gate_up_proj"},
}};

constexpr std::array<RoleName, 4> kGlm4Names = {{
    {WeightRole::kGate, "model.layers.{}.mlp.gate_up_proj"},
    {WeightRole::kUp, "model.layers.{}.mlp.gate_up_proj"},
    {WeightRole::kAttentionOutNorm, "model.layers.{}.post_self_attn_layernorm"},
    {WeightRole::kMlpOutNorm, "model.layers.{}.post_mlp_layernorm"},
}};

// All have [gate; up] in one tensor.
TensorSource WithStackedMlp(TensorSource source, const ModelSpec& spec, const WeightId& id) {
  if (RowOf(id.role).pack == WeightPack::kGateUp) {
    const int64_t neurons = spec.layer(id.layer).mlp.intermediate_size;
    source.rows = RowRange(id.role == WeightRole::kGate ? 0 : neurons, neurons, 2 * neurons);
  }
  return source;
}

TensorSource ChatGlmSource(const ModelSpec& spec, const WeightId& id) {
  return WithStackedMlp(StackedQkvSource(spec, id, kChatGlmNames), spec, id);
}
TensorSource GlmSource(const ModelSpec& spec, const WeightId& id) {
  return WithStackedMlp(NamedSource(spec, id, kGlmNames), spec, id);
}
TensorSource Glm4Source(const ModelSpec& spec, const WeightId& id) {
  return WithStackedMlp(NamedSource(spec, id, kGlm4Names), spec, id);
}

TensorSource Glm4MoeSource(const ModelSpec& spec, const WeightId& id) {
  return SourceWithShared(spec, id, "shared_experts");
}

// ChatGLM 2 divides positions by rope_ratio; ChatGLM 3 and GLM-4 multiply the base. The configs of
// ChatGLM 2 and 3 share every key, so that only their names tell them apart.
void ReadRatio(const JsonFields& config, const ModelSpec& spec, RopeSpec& rope) {
  constexpr int64_t kChatGlmVocab = 65024;
  const double ratio = config.Number("rope_ratio", 1.0);
  if (ratio == 1.0) return;
  const std::string name = config.Text(config.Has(kVersion) ? kVersion : "_name_or_path", "");
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (spec.vocab_size > kChatGlmVocab || has("chatglm3") || has("glm-4") || has("glm4")) {
    rope.theta *= ratio;
  } else if (has("chatglm2")) {
    rope.scaling = {.kind = RopeScaling::Kind::kLinear,
                    .factor = ratio,
                    .original_max_positions = spec.max_positions};
  } else {
    config.Fail("rope_ratio", config.Shown("rope_ratio") +
                                  " means one thing to ChatGLM 2 and another to ChatGLM 3, and "
                                  "_name_or_path names neither; give --chatglm_model_version");
  }
}

void ReadChatGlm(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.vocab = "padded_vocab_size",
             .layers = "num_layers",
             .kv_heads = "multi_query_group_num",
             .head_dim = "kv_channels",
             .intermediate = "ffn_hidden_size",
             .positions = "seq_length",
             .epsilon = "layernorm_epsilon",
             .default_epsilon = 1e-5},
            spec);
  if (!config.Bool("rmsnorm", true)) spec.norm.kind = NormSpec::Kind::kLayer;
  if (config.Bool("apply_residual_connection_post_layernorm", false)) {
    Refuse(config, "apply_residual_connection_post_layernorm", "");
  }
  if (!config.Bool("post_layer_norm", true)) Refuse(config, "post_layer_norm", "");
  const bool biased = config.Bool("add_bias_linear", false);
  RopeSpec rope = {.interleaved = true};
  ReadRatio(config, spec, rope);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    AttentionSpec& attention = layer.attention;
    if (!config.Bool("multi_query_attention", true)) attention.num_kv_heads = attention.num_heads;
    attention.qkv_bias = biased || config.Bool("add_qkv_bias", false);
    attention.out_bias = layer.mlp.bias = biased;
    attention.rope = rope;
    attention.rope.dim = attention.head_dim / 2;
  });
}

void ReadGlm(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 131072, .default_epsilon = 1.5625e-7}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = config.Bool("attention_bias", false);
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  const bool whole = !config.Has("partial_rotary_factor") && !config.Has("rope_parameters");
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.rope.interleaved = true;
    if (whole) layer.attention.rope.dim = layer.attention.head_dim / 2;
  });
}

void ReadGlm4(const JsonFields& config, ModelSpec& spec) {
  ReadGlm(config, spec);
  ForEachLayer(spec, [](LayerSpec& layer) { layer.residual = Residual::kSandwich; });
}

// GLM-4.5: pairs are halves of a head, unlike those of GLM-4, and the experts are DeepSeek's.
void ReadGlm4Moe(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config, {.default_positions = 131072, .default_epsilon = 1e-5}, spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention.qkv_bias = config.Bool("attention_bias", false);
    if (config.Bool("use_qk_norm", false)) layer.attention.head_norm = HeadNorm::kHead;
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
  });
  ReadRopes(config, spec);
  if (!config.Has("partial_rotary_factor") && !config.Has("rope_parameters")) {
    ForEachLayer(spec,
                 [](LayerSpec& layer) { layer.attention.rope.dim = layer.attention.head_dim / 2; });
  }
  ReadRoutedExperts(config, "sigmoid", spec);
}

}  // namespace

Family ChatGlmFamily() {
  return {.name = "chatglm",
          .architectures = kChatGlm,
          .read = ReadChatGlm,
          .source = ChatGlmSource,
          .version_option = kVersion,
          .versions = kChatGlmVersions};
}
Family GlmFamily() {
  return {.name = "glm", .architectures = kGlm, .read = ReadGlm, .source = GlmSource};
}
Family Glm4Family() {
  return {.name = "glm4", .architectures = kGlm4, .read = ReadGlm4, .source = Glm4Source};
}
Family Glm4MoeFamily() {
  return {
      .name = "glm4_moe", .architectures = kGlm4Moe, .read = ReadGlm4Moe, .source = Glm4MoeSource};
}

}  // namespace tandem
