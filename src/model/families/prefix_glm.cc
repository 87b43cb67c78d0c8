#include "model/families/prefix_glm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kChatGlm = {"ChatGLMModel",
                                                      "ChatGLMForConditionalGeneration"};
constexpr std::array<std::string_view, 2> kGlm = {"GLMModel", "GLMForConditionalGeneration"};
constexpr std::string_view kVersion = "chatglm_model_version";
constexpr std::array<std::string_view, 2> kChatGlmVersions = {"chatglm_6b", "chatglm"};
constexpr std::array<std::string_view, 2> kGlmVersions = {"glm_10b", "glm"};

constexpr std::array<RoleName, 11> kNames = {{
    {WeightRole::kEmbedding, "transformer.word_embeddings"},
    {WeightRole::kInputNorm, "transformer.layers.{}.input_layernorm"},
    {WeightRole::kQuery, "transformer.layers.{}.attention.query_key_value"},
    {WeightRole::kKey, "transformer.layers.{}.attention.query_key_value"},
    {WeightRole::kValue, "transformer.layers.{}.attention.query_key_value"},
    {WeightRole::kAttentionOut, "transformer.layers.{}.attention.dense"},
    {WeightRole::kPostNorm, "transformer.layers.{}.post_attention_layernorm"},
    {WeightRole::kUp, "transformer.layers.{}.mlp.dense_h_to_4h"},
    {WeightRole::kDown, "transformer.layers.{}.mlp.dense_4h_to_h"},
    {WeightRole::kFinalNorm, "transformer.final_layernorm"},
    {WeightRole::kHead, "lm_head"},
}};
constexpr std::array<RoleName, 3> kGlmNames = {{
    {WeightRole::kEmbedding, "glm.word_embeddings"},
    {WeightRole::kPositions, "glm.transformer.position_embeddings"},
    {WeightRole::kSecondPositions, "glm.transformer.block_position_embeddings"},
}};

TensorSource ChatGlm6bSource(const ModelSpec& spec, const WeightId& id) {
  return GroupedQkvSource(spec, id, kNames);
}

TensorSource Glm10bSource(const ModelSpec& spec, const WeightId& id) {
  if (std::ranges::find(kGlmNames, id.role, &RoleName::role) != kGlmNames.end()) {
    return NamedSource(spec, id, kGlmNames);
  }
  TensorSource source = StackedQkvSource(spec, id, kNames);
  source.name = "glm." + source.name;
  return source;
}

// Layer norms, biases everywhere, MLPs without a gate, of 4 times the hidden size unless the config
// says otherwise.
void ReadLayers(const JsonFields& config, ModelSpec& spec) {
  ReadSizes(config,
            {.layers = "num_layers",
             .kv_heads = "num_attention_heads",
             .intermediate = "inner_hidden_size",
             .positions = "max_sequence_length",
             .epsilon = "layernorm_epsilon",
             .default_epsilon = 1e-5,
             .default_tied = true,
             .default_intermediate = true},
            spec);
  spec.norm.kind = NormSpec::Kind::kLayer;
  spec.norm.bias = true;
  ForEachLayer(spec, [](LayerSpec& layer) {
    layer.attention.qkv_bias = layer.attention.out_bias = layer.mlp.bias = true;
    layer.mlp.gated = false;
  });
}

// A token id; -1 and a fault where the vocabulary does not have it.
int32_t ReadId(const JsonFields& config, std::string_view key, int64_t fallback,
               const ModelSpec& spec) {
  const int64_t id = config.Int(key, fallback);
  if (id >= 0 && id < spec.vocab_size) return static_cast<int32_t>(id);
  config.Fail(key, std::to_string(id) + " is outside the vocabulary (vocab_size is " +
                       std::to_string(spec.vocab_size) + ")");
  return -1;
}

bool ClaimsChatGlm6b(const JsonFields& config) {
  return config.Bool("position_encoding_2d", false);
}

// The first release has a vocabulary whose ids are not in its config.
void ReadChatGlm6b(const JsonFields& config, ModelSpec& spec) {
  ReadLayers(config, spec);
  spec.prefix.start_id = ReadId(config, "bos_token_id", 150004, spec);
  spec.prefix.mask_ids = {ReadId(config, "gmask_token_id", 150001, spec),
                          ReadId(config, "mask_token_id", 150000, spec)};
  ForEachLayer(spec, [](LayerSpec& layer) {
    layer.mlp.activation = ops::Activation::kGeluTanh;
    layer.residual = Residual::kNormed;
    layer.alpha = std::sqrt(56.0);  // sqrt(2 * 28), whatever the number of layers
    layer.attention.rope = {
        .dim = layer.attention.head_dim / 2, .halves = true, .fp16_frequencies = true};
  });
}

// The id of a token that the config names by `key`, or else added_tokens.json by its text; -1:
// neither does.
int32_t ReadNamedId(const JsonFields& config, std::string_view key, std::string_view token,
                    const ModelSpec& spec) {
  if (config.Has(key)) return ReadId(config, key, -1, spec);
  const auto added = config.Object("added_tokens");
  return added && added->Has(token) ? ReadId(*added, token, -1, spec) : -1;
}

// The order in which the authors' code looks for the token at which the output stands.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kGlmMasks = {
    {{"mask_token_id", "[MASK]"}, {"smask_token_id", "[sMASK]"}, {"gmask_token_id", "[gMASK]"}}};

// The tokenizer's files, not the config, name the special tokens.
void ReadGlm10b(const JsonFields& config, ModelSpec& spec) {
  if (!config.Bool("block_position_encoding", false)) {
    Refuse(config, "block_position_encoding", "; it must be true");
  }
  if (config.Bool("relative_encoding", false)) Refuse(config, "relative_encoding", "");
  ReadLayers(config, spec);
  // A longer context than any is refused with the spec.
  spec.position_rows = spec.second_position_rows = std::min(spec.max_positions, kMaxPositions) + 1;
  ForEachLayer(spec, [](LayerSpec& layer) { layer.mlp.activation = ops::Activation::kGelu; });
  spec.prefix.start_id = ReadNamedId(config, "sop_token_id", "<|startofpiece|>", spec);
  for (const auto& [key, token] : kGlmMasks) {
    const int32_t id = ReadNamedId(config, key, token, spec);
    if (id >= 0) spec.prefix.mask_ids.push_back(id);
  }
  if (spec.prefix.start_id < 0 || spec.prefix.mask_ids.empty()) {
    config.Fail("sop_token_id",
                "is missing: no added_tokens.json beside the config has the ids of "
                "<|startofpiece|> and of [MASK], [sMASK] or [gMASK], nor does the config have them "
                "as sop_token_id, mask_token_id, smask_token_id and gmask_token_id");
  }
}

}  // namespace

Family ChatGlm6bFamily() {
  return {.name = "chatglm6b",
          .architectures = kChatGlm,
          .read = ReadChatGlm6b,
          .source = ChatGlm6bSource,
          .claims = ClaimsChatGlm6b,
          .version_option = kVersion,
          .versions = kChatGlmVersions};
}
Family Glm10bFamily() {
  return {.name = "glm10b",
          .architectures = kGlm,
          .read = ReadGlm10b,
          .source = Glm10bSource,
          .version_option = kVersion,
          .versions = kGlmVersions,
          .optional_prefix = "glm."};
}

}  // namespace tandem
