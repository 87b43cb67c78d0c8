#include "model/families/llama.h"

#include <array>

#include "model/json_fields.h"
#include "model/quantization_config.h"
#include "model/rope_config.h"

namespace tandem {
namespace {

// The second is what the very first conversions wrote.
constexpr std::array<std::string_view, 2> kArchitectures = {"LlamaForCausalLM", "LLaMAForCausalLM"};

void Refuse(const JsonFields& config, std::string_view key, std::string_view why) {
  config.Fail(key, config.Shown(key) + " is not supported" + std::string(why));
}

// What would change the result and is not computed here. Keys that Llama ignores (pretraining_tp,
// use_cache, attention_dropout, ...) are ignored here too.
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

DType DTypeOf(const JsonFields& config) {
  // transformers 5 says dtype, 4 says torch_dtype; neither means float32, as it does there.
  const char* key = config.Has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = config.Text(key, "float32");
  const auto dtype = ParseDType(name);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)) {
    config.Fail(key, "\"" + name.substr(0, 40) + "\" is not float32, float16 or bfloat16");
    return DType::kF32;
  }
  return *dtype;
}

// transformers 4: rope_theta and rope_scaling side by side; 5: both inside rope_parameters.
void ReadRope(const JsonFields& config, ModelSpec& spec) {
  spec.rope_theta = config.Number("rope_theta", spec.rope_theta);
  const auto rope = config.Has("rope_parameters") ? config.Object("rope_parameters")
                                                  : config.Object("rope_scaling");
  if (!rope) return;
  for (const char* per_layer : {"full_attention", "sliding_attention"}) {
    if (rope->Has(per_layer)) rope->Fail(per_layer, "parameters by layer type are not supported");
  }
  if (rope->Number("partial_rotary_factor", 1.0) != 1.0) {
    Refuse(*rope, "partial_rotary_factor", "; every dimension of a head is rotated");
  }
  spec.rope_theta = rope->Number("rope_theta", spec.rope_theta);
  ReadRopeScaling(*rope, config.Int("original_max_position_embeddings", spec.max_positions), spec);
}

// Ids outside the vocabulary are never produced; some configs write -1 for "none".
std::vector<int32_t> Ids(const std::vector<int64_t>& values, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const int64_t value : values) {
    if (value >= 0 && value < vocab_size) ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

Result<ModelSpec> SpecFromHf(const std::string& config_json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Parse(config_json));
  RefuseUnsupported(config);
  ModelSpec spec;
  spec.family = "llama";
  spec.architecture = "LlamaForCausalLM";
  spec.dtype = DTypeOf(config);
  spec.vocab_size = config.Int("vocab_size");
  spec.hidden_size = config.Int("hidden_size");
  spec.intermediate_size = config.Int("intermediate_size");
  spec.num_layers = config.Int("num_hidden_layers");
  spec.num_heads = config.Int("num_attention_heads");
  spec.num_kv_heads = config.Int("num_key_value_heads", spec.num_heads);
  // The fallbacks below are what transformers takes when a key is absent.
  spec.max_positions = config.Int("max_position_embeddings", 2048);
  spec.norm_epsilon = config.Number("rms_norm_eps", 1e-6);
  spec.tied_head = config.Bool("tie_word_embeddings", false);
  spec.attention_bias = config.Bool("attention_bias", false);
  spec.mlp_bias = config.Bool("mlp_bias", false);
  if (config.Has("head_dim")) {
    spec.head_dim = config.Int("head_dim");
  } else if (spec.num_heads > 0) {
    if (spec.hidden_size % spec.num_heads != 0) {
      config.Fail("num_attention_heads", "does not divide hidden_size, and head_dim is missing");
    }
    spec.head_dim = spec.hidden_size / spec.num_heads;
  }
  ReadRope(config, spec);
  ReadQuantization(config, spec);
  spec.bos_ids = Ids(config.Ints("bos_token_id"), spec.vocab_size);
  spec.eos_ids = Ids(config.Ints("eos_token_id"), spec.vocab_size);
  TANDEM_RETURN_IF_ERROR(config.status());
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

std::string LayerName(WeightRole role, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  switch (role) {
    case WeightRole::kInputNorm:
      return prefix + "input_layernorm";
    case WeightRole::kQuery:
      return prefix + "self_attn.q_proj";
    case WeightRole::kKey:
      return prefix + "self_attn.k_proj";
    case WeightRole::kValue:
      return prefix + "self_attn.v_proj";
    case WeightRole::kAttentionOut:
      return prefix + "self_attn.o_proj";
    case WeightRole::kPostNorm:
      return prefix + "post_attention_layernorm";
    case WeightRole::kGate:
      return prefix + "mlp.gate_proj";
    case WeightRole::kUp:
      return prefix + "mlp.up_proj";
    case WeightRole::kDown:
      return prefix + "mlp.down_proj";
    case WeightRole::kEmbedding:
      return "model.embed_tokens";
    case WeightRole::kFinalNorm:
      return "model.norm";
    case WeightRole::kHead:
      return "lm_head";
  }
  return {};
}

std::string HfName(WeightRole role, int64_t layer, WeightPart part) {
  constexpr std::array kSuffixes = {".weight", ".bias", ".weight_scale", ".input_scale"};
  return LayerName(role, layer) + kSuffixes[static_cast<size_t>(part)];
}

}  // namespace

Family LlamaFamily() { return {"llama", kArchitectures, SpecFromHf, HfName}; }

}  // namespace tandem
