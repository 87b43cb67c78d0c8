#include "model/families/deepseek.h"

#include <array>
#include <cmath>
#include <string>

#include "model/hf_config.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 1> kV2 = {"DeepseekV2ForCausalLM"};
constexpr std::array<std::string_view, 1> kV3 = {"DeepseekV3ForCausalLM"};

constexpr std::array<RoleName, 2> kLatentNames = {{
    {WeightRole::kLatentKey, "model.layers.{}.self_attn.kv_b_proj"},
    {WeightRole::kLatentValue, "model.layers.{}.self_attn.kv_b_proj"},
}};
constexpr std::array<RoleName, 1> kQueryNames = {{
    {WeightRole::kQuery, "model.layers.{}.self_attn.q_b_proj"},
}};

TensorSource Source(const ModelSpec& spec, const WeightId& id) {
  const AttentionSpec& attention = spec.layer(id.layer).attention;
  const LatentSpec& latent = attention.latent;
  const bool of_key = id.role == WeightRole::kLatentKey;
  if (of_key || id.role == WeightRole::kLatentValue) {
    // By head: the rows of its key, then those of its value.
    TensorSource source = NamedSource(spec, id, kLatentNames);
    const int64_t head = latent.key_dim + latent.value_dim;
    source.rows = {.first = of_key ? 0 : latent.key_dim,
                   .block = of_key ? latent.key_dim : latent.value_dim,
                   .stride = head,
                   .of = attention.num_heads * head};
    return source;
  }
  if (id.role == WeightRole::kQuery && latent.query_rank > 0) {
    return NamedSource(spec, id, kQueryNames);
  }
  return SourceWithShared(spec, id, "shared_experts");
}

// 0 after a fault.
int64_t ReadDim(const JsonFields& config, std::string_view key, int64_t most) {
  const int64_t dim = config.Int(key);
  if (dim >= 1 && dim <= most) return dim;
  config.Fail(key,
              config.Shown(key) + " elements; it must be between 1 and " + std::to_string(most));
  return 0;
}

AttentionSpec ReadAttention(const JsonFields& config, ModelSpec& spec) {
  AttentionSpec attention = spec.layers.front().attention;
  LatentSpec& latent = attention.latent;
  latent.rank = ReadDim(config, "kv_lora_rank", kMaxHeadDim);
  latent.key_dim = ReadDim(config, "qk_nope_head_dim", kMaxHeadDim);
  latent.value_dim = ReadDim(config, "v_head_dim", kMaxHeadDim);
  if (config.Has("q_lora_rank")) {
    latent.query_rank = ReadDim(config, "q_lora_rank", kMaxWidth);
  }
  latent.norm_epsilon = 1e-6;  // whatever rms_norm_eps is
  attention.rope =
      ReadRope(config, ReadDim(config, "qk_rope_head_dim", kMaxHeadDim), spec.max_positions);
  attention.rope.interleaved = config.Bool("rope_interleave", true);
  attention.num_kv_heads = 1;
  attention.head_dim = latent.rank + attention.rope.dim;
  attention.scale = 1.0 / std::sqrt(static_cast<double>(attention.query_dim()));
  // Yarn makes both queries and keys larger, here in the scale of their products.
  const auto rope = RopeObject(config);
  if (rope && rope->Has("mscale_all_dim")) {
    const double of_all = rope->Number("mscale_all_dim");
    if (!(of_all >= 0.0 && of_all <= 1000.0)) {
      rope->Fail("mscale_all_dim", "must be between 0 and 1000");
    }
    const double larger = YarnScale(rope->Number("factor", 1.0), of_all);
    attention.scale *= larger * larger;
  }
  attention.qkv_bias = attention.out_bias = config.Bool("attention_bias", false);
  return attention;
}

void Read(const JsonFields& config, std::string_view scoring, ModelSpec& spec) {
  ReadSizes(config, {.head_dim = "v_head_dim"}, spec);
  if (spec.layers.empty()) return;
  const AttentionSpec attention = ReadAttention(config, spec);
  const ops::Activation activation = ReadActivation(config, "hidden_act", "silu");
  ForEachLayer(spec, [&](LayerSpec& layer) {
    layer.attention = attention;
    layer.mlp.activation = activation;
  });
  if (config.Has("n_routed_experts")) ReadRoutedExperts(config, scoring, spec);
}

void ReadV2(const JsonFields& config, ModelSpec& spec) { Read(config, "softmax", spec); }
void ReadV3(const JsonFields& config, ModelSpec& spec) { Read(config, "sigmoid", spec); }

}  // namespace

Family DeepSeekV2Family() {
  return {.name = "deepseek_v2", .architectures = kV2, .read = ReadV2, .source = Source};
}
Family DeepSeekV3Family() {
  return {.name = "deepseek_v3", .architectures = kV3, .read = ReadV3, .source = Source};
}

}  // namespace tandem
