#include "model/families/baichuan.h"

#include <array>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 2> kArchitectures = {"BaichuanForCausalLM",
                                                            "BaiChuanForCausalLM"};
// Of Baichuan 2, whose head is normed. Only the vocabulary tells the generations apart.
constexpr int64_t kSecondVocab = 125696;

constexpr std::array<RoleName, 3> kNames = {{
    {WeightRole::kQuery, "model.layers.{}.self_attn.W_pack"},
    {WeightRole::kKey, "model.layers.{}.self_attn.W_pack"},
    {WeightRole::kValue, "model.layers.{}.self_attn.W_pack"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  TensorSource source = NamedSource(spec, id, kNames);
  if (RowOf(id.role).pack == WeightPack::kQkv) {
    source.rows = StackedQkv(spec.layer(id.layer).attention, id.role);
  }
  return source;
}

void Read(const JsonFields& config, ModelSpec& spec) {
  // Only the models with rotary positions (7B) have this key; the others (13B) have ALiBi.
  const bool rotary = config.Has("max_position_embeddings");
  ReadSizes(config,
            {.kv_heads = "num_attention_heads",
             .positions = rotary ? "max_position_embeddings" : "model_max_length",
             .default_positions = 4096},
            spec);
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.mlp.activation = ReadActivation(config, "hidden_act", "silu");
    layer.attention.alibi_scale = rotary ? 0.0 : 1.0;
  });
  if (rotary) ReadRopes(config, spec);
  spec.head_normed = spec.vocab_size == kSecondVocab;
}

}  // namespace

Family BaichuanFamily() {
  return {.name = "baichuan", .architectures = kArchitectures, .read = Read, .source = Source};
}

}  // namespace tandem
