#include "model/families/baichuan.h"

#include <array>
#include <string>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kArchitectures = {"BaichuanForCausalLM",
                                                            "BaiChuanForCausalLM"};
constexpr std::array<std::string_view, 4> kVersions = {"v1_7b", "v1_13b", "v2_7b", "v2_13b"};
constexpr std::string_view kVersion = "baichuan_model_version";
// Only the vocabularies tell the generations apart.
constexpr int64_t kFirstVocab = 64000;
constexpr int64_t kSecondVocab = 125696;
constexpr int64_t kMostAdded = 1000;  // tokens added by those who trained a model further

constexpr std::array<RoleName, 3> kNames = {{
    {WeightRole::kQuery, "model.layers.{}.self_attn.W_pack"},
    {WeightRole::kKey, "model.layers.{}.self_attn.W_pack"},
    {WeightRole::kValue, "model.layers.{}.self_attn.W_pack"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  return StackedQkvSource(spec, id, kNames);
}

// Baichuan 2, whose head is normed.
bool IsSecond(const JsonFields& config, int64_t vocab) {
  const auto is_about = [vocab](int64_t size) {
    return vocab >= size && vocab <= size + kMostAdded;
  };
  if (config.Has(kVersion)) return config.Text(kVersion).starts_with("v2");
  if (is_about(kSecondVocab) || config.Has("z_loss_weight")) return true;
  if (!is_about(kFirstVocab)) {
    config.Fail(kVersion, "is missing: a vocabulary of " + std::to_string(vocab) +
                              " does not tell Baichuan 1 from 2; give --baichuan_model_version");
  }
  return false;
}

void Read(const JsonFields& config, ModelSpec& spec) {
  // Only the models with rotary positions (7B) have this key; the others (13B) have ALiBi.
  const bool has_key = config.Has("max_position_embeddings");
  const bool rotary = config.Has(kVersion) ? config.Text(kVersion).ends_with("_7b") : has_key;
  ReadSizes(config,
            {.kv_heads = "num_attention_heads",
             .positions = has_key ? "max_position_embeddings" : "model_max_length",
             .default_positions = 4096},
            spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
    layer.attention.alibi_scale = rotary ? 0.0 : 1.0;
  });
  if (rotary) ReadRopes(config, spec);
  spec.head_normed = IsSecond(config, spec.vocab_size);
}

}  // namespace

Family BaichuanFamily() {
  return {.name = "baichuan",
          .architectures = kArchitectures,
          .read = Read,
          .source = Source,
          .version_option = kVersion,
          .versions = kVersions};
}

}  // namespace tandem
