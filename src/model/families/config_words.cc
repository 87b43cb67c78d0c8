#include "model/families/config_words.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {
namespace {

struct Spelling {
  std::string_view field;  // as ValidateSpec names it
  std::array<std::string_view, 7> keys;
};
// Those of one row exclude each other in a config, or the first is the one that is read. A key may
// be of an object within the config, "{}" is the one that describes the rotation.
constexpr std::string_view kRope = "{}";
constexpr std::array kSpellings = {
    Spelling{"attention.scale", {"query_pre_attn_scalar", "attn_config.softmax_scale"}},
    Spelling{"chunk", {"attention_chunk_size"}},
    Spelling{"head_dim", {"head_dim", "kv_channels"}},
    Spelling{"hidden_size", {"hidden_size", "n_embd", "n_embed", "d_model"}},
    Spelling{"intermediate_size",
             {"intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim",
              "expansion_ratio", "inner_hidden_size"}},
    Spelling{"latent.key_dim", {"qk_nope_head_dim"}},
    Spelling{"latent.query_rank", {"q_lora_rank"}},
    Spelling{"latent.rank", {"kv_lora_rank"}},
    Spelling{"latent.value_dim", {"v_head_dim"}},
    Spelling{"logit_cap", {"final_logit_softcapping"}},
    Spelling{"logit_scale", {"logit_scale"}},
    Spelling{"max_positions",
             {"max_position_embeddings", "seq_length", "n_positions", "max_seq_len",
              "model_max_length", "max_sequence_length"}},
    Spelling{"moe.expert.intermediate_size", {"moe_intermediate_size", "intermediate_size"}},
    Spelling{"moe.limit", {"swiglu_limit"}},
    Spelling{"moe.num_experts", {"num_experts", "num_local_experts", "n_routed_experts"}},
    Spelling{"moe.routing.chosen_groups", {"topk_group"}},
    Spelling{"moe.routing.experts_per_token", {"num_experts_per_tok", "experts_per_token"}},
    Spelling{"moe.routing.num_groups", {"n_group"}},
    Spelling{"moe.routing.scale", {"routed_scaling_factor"}},
    Spelling{"norm.epsilon",
             {"norm_epsilon", "layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon",
              "layernorm_epsilon"}},
    Spelling{"num_heads", {"num_attention_heads", "n_head", "n_heads"}},
    Spelling{"num_kv_heads",
             {"num_key_value_heads", "multi_query_group_num", "n_head_kv", "num_kv_heads"}},
    Spelling{"num_layers", {"num_hidden_layers", "num_layers", "n_layer", "n_layers"}},
    Spelling{"query_growth.factor", {"attn_scale"}},
    Spelling{"query_growth.length", {"floor_scale", "seq_length"}},
    Spelling{"rope.attention_factor", {"{}.attention_factor"}},
    Spelling{"rope.beta_fast", {"{}.beta_fast"}},
    Spelling{"rope.beta_slow", {"{}.beta_slow"}},
    Spelling{"rope.dim", {"rotary_dim", "qk_rope_head_dim"}},
    Spelling{"rope.factor", {"{}.factor", "rotary.scaling_factor", "rope_ratio"}},
    Spelling{"rope.high_freq_factor", {"{}.high_freq_factor"}},
    Spelling{"rope.long_factors", {"{}.long_factor"}},
    Spelling{"rope.low_freq_factor", {"{}.low_freq_factor"}},
    Spelling{"rope.original_max_positions",
             {"{}.original_max_position_embeddings", "original_max_position_embeddings",
              "seq_length", "max_position_embeddings"}},
    Spelling{"rope.short_factors", {"{}.short_factor"}},
    Spelling{"rope.theta",
             {"rotary_base", "rope_theta", "{}.rope_theta", "rotary_emb_base", "rope_ratio",
              "rotary.base"}},
    Spelling{"soft_cap", {"attn_logit_softcapping"}},
    Spelling{"vocab_size", {"padded_vocab_size", "vocab_size"}},
    Spelling{"window", {"sliding_window"}},
};

// Also "object.key".
bool HasKey(const JsonFields& config, std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos || !config.Has(key.substr(0, dot))) return config.Has(key);
  const auto object = config.Object(key.substr(0, dot));
  return object && HasKey(*object, key.substr(dot + 1));
}

// The object that describes the rotation of layers without a window.
std::string_view RopeObjectOf(const JsonFields& config) {
  for (const char* object : {"rope_parameters.full_attention", "rope_parameters"}) {
    if (HasKey(config, object)) return object;
  }
  return "rope_scaling";
}

}  // namespace

FieldNames WordsOf(const JsonFields& config) {
  return [config](std::string_view field) {
    const auto* const row = std::ranges::find(kSpellings, field, &Spelling::field);
    if (row == kSpellings.end()) return std::string(field);
    std::string first;
    for (const std::string_view key : row->keys) {
      if (key.empty()) break;
      const bool of_rope = key.starts_with(kRope);
      std::string name = of_rope ? std::string(RopeObjectOf(config)) : "";
      name += key.substr(of_rope ? kRope.size() : 0);
      if (HasKey(config, name)) return name;
      if (first.empty()) first = std::move(name);
    }
    return first;
  };
}

}  // namespace tandem
