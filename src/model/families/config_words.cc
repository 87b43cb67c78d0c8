#include "model/families/config_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {
namespace {

struct Spelling {
  std::string_view field;  // as ValidateSpec names it
  std::array<std::string_view, 6> keys;
};
// Those of one row exclude each other in a config, or the first is the one that is read.
constexpr std::array kSpellings = {
    Spelling{"attention scale", {"query_pre_attn_scalar"}},
    Spelling{"chosen_groups", {"topk_group"}},
    Spelling{"expert intermediate_size", {"moe_intermediate_size", "intermediate_size"}},
    Spelling{"experts_per_token", {"num_experts_per_tok", "experts_per_token"}},
    Spelling{"head_dim", {"head_dim", "kv_channels"}},
    Spelling{"hidden_size", {"hidden_size", "n_embd", "n_embed", "d_model"}},
    Spelling{"intermediate_size",
             {"intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "expansion_ratio",
              "inner_hidden_size"}},
    Spelling{"logit_cap", {"final_logit_softcapping"}},
    Spelling{"logit_scale", {"logit_scale"}},
    Spelling{"max_positions",
             {"max_position_embeddings", "seq_length", "n_positions", "max_seq_len",
              "model_max_length", "max_sequence_length"}},
    Spelling{"norm_epsilon",
             {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon",
              "norm_epsilon"}},
    Spelling{"num_experts", {"num_experts", "num_local_experts", "n_routed_experts"}},
    Spelling{"num_groups", {"n_group"}},
    Spelling{"num_heads", {"num_attention_heads", "n_head", "n_heads"}},
    Spelling{"num_kv_heads",
             {"num_key_value_heads", "multi_query_group_num", "n_head_kv", "num_kv_heads"}},
    Spelling{"query_growth.length", {"floor_scale", "seq_length"}},
    Spelling{"rotary_dim", {"rotary_dim", "qk_rope_head_dim"}},
    Spelling{"rope_theta", {"rope_theta", "rotary_emb_base", "rope_ratio", "rotary.base"}},
    Spelling{"rope_scaling.original_max_positions",
             {"rope_scaling.original_max_position_embeddings", "seq_length"}},
    Spelling{"routing scale", {"routed_scaling_factor"}},
    Spelling{"vocab_size", {"vocab_size", "padded_vocab_size"}},
};

bool IsOfWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The row whose field begins here as a word; the longest comes first in the table.
const Spelling* FieldAt(std::string_view text, size_t at) {
  if (at > 0 && IsOfWord(text[at - 1])) return nullptr;
  for (const Spelling& row : kSpellings) {
    const size_t end = at + row.field.size();
    const bool ends = end >= text.size() || !IsOfWord(text[end]);
    if (ends && text.substr(at).starts_with(row.field)) return &row;
  }
  return nullptr;
}

// Also "object.key".
bool HasKey(const JsonFields& config, std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return config.Has(key);
  const auto object = config.Has(key.substr(0, dot))
                          ? config.Object(std::string(key.substr(0, dot)))
                          : std::nullopt;
  return object && object->Has(key.substr(dot + 1));
}

std::string_view KeyOf(const JsonFields& config, const Spelling& row) {
  for (const std::string_view key : row.keys) {
    if (!key.empty() && HasKey(config, key)) return key;
  }
  return row.keys.front();
}

}  // namespace

Status InWordsOf(const JsonFields& config, const Status& status) {
  const std::string_view message = status.message();
  std::string spelled;
  for (size_t at = 0; at < message.size();) {
    const Spelling* const row = FieldAt(message, at);
    spelled += row == nullptr ? message.substr(at, 1) : KeyOf(config, *row);
    at += row == nullptr ? 1 : row->field.size();
  }
  return {status.code(), std::move(spelled)};
}

}  // namespace tandem
