#include "model/families/llama.h"

#include <array>

#include "model/hf_config.h"
#include "model/hf_quantization.h"

namespace tandem {
namespace {

// The second name was written by the very first conversions.
constexpr std::array<std::string_view, 2> kArchitectures = {"LlamaForCausalLM", "LLaMAForCausalLM"};

// Settings that would change the result and are not supported here. Keys that Llama ignores
// (pretraining_tp, use_cache, attention_dropout, ...) are ignored here too.
void RefuseUnsupported(const JsonFields& config) {
  if (config.Has("sliding_window") && config.Bool("use_sliding_window", true)) {
    Refuse(config, "sliding_window", "; attention is over the whole context");
  }
  for (const std::string& kind : config.Texts("layer_types")) {
    if (kind != "full_attention") config.Fail("layer_types", "\"" + kind + "\" is not supported");
  }
  const std::string activation = config.Text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    Refuse(config, "hidden_act", "; it must be silu");
  }
  if (config.Number("partial_rotary_factor", 1.0) != 1.0) {
    Refuse(config, "partial_rotary_factor", "; every dimension of a head is rotated");
  }
}

AttentionSpec ReadAttention(const JsonFields& config, ModelSpec& spec) {
  AttentionSpec attention;
  attention.num_heads = config.Int("num_attention_heads");
  attention.num_kv_heads = config.Int("num_key_value_heads", attention.num_heads);
  attention.bias = config.Bool("attention_bias", false);
  if (config.Has("head_dim")) {
    attention.head_dim = config.Int("head_dim");
  } else if (attention.num_heads > 0) {
    if (spec.hidden_size % attention.num_heads != 0) {
      config.Fail("num_attention_heads", "does not divide hidden_size, and head_dim is missing");
    }
    attention.head_dim = spec.hidden_size / attention.num_heads;
  }
  attention.rope = ReadRope(config, spec.max_positions);
  return attention;
}

Result<ModelSpec> SpecFromHf(const std::string& config_json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Parse(config_json));
  RefuseUnsupported(config);
  ModelSpec spec;
  spec.family = "llama";
  spec.architecture = "LlamaForCausalLM";
  spec.dtype = ReadDType(config);
  spec.vocab_size = config.Int("vocab_size");
  spec.hidden_size = config.Int("hidden_size");
  // The fallbacks below are transformers' defaults for absent keys.
  spec.max_positions = config.Int("max_position_embeddings", 2048);
  spec.norm.epsilon = config.Number("rms_norm_eps", 1e-6);
  spec.tied_head = config.Bool("tie_word_embeddings", false);
  const MlpSpec mlp = {.intermediate_size = config.Int("intermediate_size"),
                       .bias = config.Bool("mlp_bias", false)};
  spec.layers = RepeatLayer(config, "num_hidden_layers", {ReadAttention(config, spec), mlp});
  ReadQuantization(config, spec);
  spec.bos_ids = ReadIds(config, "bos_token_id", spec.vocab_size);
  spec.eos_ids = ReadIds(config, "eos_token_id", spec.vocab_size);
  TANDEM_RETURN_IF_ERROR(config.status());
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

}  // namespace

Family LlamaFamily() { return {"llama", kArchitectures, SpecFromHf, StandardSource}; }

}  // namespace tandem
