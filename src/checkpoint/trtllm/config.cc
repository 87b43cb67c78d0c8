#include "checkpoint/trtllm/config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/families/families.h"
#include "model/hf_config.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

Json ScalingToJson(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return nullptr;
    case RopeScaling::Kind::kLinear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::kDynamic:
      return {{"rope_type", "dynamic"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_max_positions}};
    case RopeScaling::Kind::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", scaling.factor},
              {"beta_fast", scaling.beta_fast},
              {"beta_slow", scaling.beta_slow},
              {"truncate", scaling.truncate},
              {"attention_factor", scaling.attention_factor},
              {"original_max_position_embeddings", scaling.original_max_positions}};
    case RopeScaling::Kind::kLongRope:
      return {{"rope_type", "longrope"},
              {"factor", scaling.factor},
              {"short_factor", scaling.short_factors},
              {"long_factor", scaling.long_factors},
              {"attention_factor", scaling.attention_factor},
              {"original_max_position_embeddings", scaling.original_max_positions}};
    case RopeScaling::Kind::kNtkSteps:  // Qwen 1, which has no keys of its own here
      break;
  }
  return nullptr;
}

// max_position_embeddings is the context before linear or dynamic scaling stretches it.
int64_t UnstretchedPositions(const RopeScaling& scaling, int64_t max_positions) {
  const bool stretched =
      scaling.kind == RopeScaling::Kind::kLinear || scaling.kind == RopeScaling::Kind::kDynamic;
  return stretched ? scaling.original_max_positions : max_positions;
}

// What the keys of TensorRT-LLM that are written here do not say is described under a key of ours.
constexpr const char* kModelKey = "tandem_model";

// In TensorRT-LLM's words, which describe one layer for all.
Json KeysOf(const ModelSpec& spec) {
  const AttentionSpec& attention = spec.layers.front().attention;
  const MlpSpec& mlp = spec.layers.front().mlp;
  const RopeSpec& rope = attention.rope;
  const CheckpointForm& form = FamilyOf(spec)->checkpoint;
  Json keys = {{"architecture", form.architecture},
               {"dtype", DTypeName(spec.dtype)},
               {"logits_dtype", "float32"},
               {"vocab_size", spec.vocab_size},
               {"hidden_size", spec.hidden_size},
               {"num_hidden_layers", spec.num_layers()},
               {"num_attention_heads", attention.num_heads},
               {"num_key_value_heads", attention.num_kv_heads},
               {"head_size", attention.head_dim},
               {"intermediate_size", mlp.intermediate_size},
               {"hidden_act", "silu"},
               {"norm_epsilon", spec.norm.epsilon},
               {"position_embedding_type", "rope_gpt_neox"},
               {"max_position_embeddings", UnstretchedPositions(rope.scaling, spec.max_positions)},
               {"rotary_base", rope.theta},
               {"rotary_scaling", ScalingToJson(rope.scaling)},
               {"tie_word_embeddings", spec.tied_head},
               {"attn_bias", attention.qkv_bias},
               {"mlp_bias", mlp.bias},
               {"bos_token_id", spec.bos_ids},
               {"eos_token_id", spec.eos_ids}};
  if (!form.qwen_type.empty()) keys["qwen_type"] = form.qwen_type;
  return keys;
}

// The same words in faults.
std::string KeyOf(std::string_view field) {
  constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
      {"head_dim", "head_size"},
      {"max_positions", "max_position_embeddings"},
      {"norm.epsilon", "norm_epsilon"},
      {"num_heads", "num_attention_heads"},
      {"num_kv_heads", "num_key_value_heads"},
      {"num_layers", "num_hidden_layers"},
      {"rope.factor", "rotary_scaling.factor"},
      {"rope.theta", "rotary_base"}};
  for (const auto& [name, key] : kKeys) {
    if (field == name) return std::string(key);
  }
  return FieldKey(field);
}

Json DescriptionOf(const ModelSpec& spec) {
  return {{"architecture", spec.architecture},
          {"dtype", DTypeName(spec.dtype)},
          {kModelKey, Json::parse(SpecToJson(spec))}};
}

void RequireOne(const JsonFields& json, const char* key) {
  if (json.Number(key, 1.0) != 1.0) json.Fail(key, json.Shown(key) + " is not supported");
}

void RefuseUnsupported(const JsonFields& json) {
  const std::string activation = json.Text("hidden_act", "silu");
  if (activation != "silu" && activation != "swiglu") {
    json.Fail("hidden_act", json.Shown("hidden_act") + " is not supported; it must be silu");
  }
  const std::string positions = json.Text("position_embedding_type", "rope_gpt_neox");
  if (positions != "rope_gpt_neox") {
    json.Fail("position_embedding_type",
              "\"" + positions + "\" is not supported; it must be rope_gpt_neox");
  }
  if (json.Bool("residual_mlp", false)) json.Fail("residual_mlp", "true is not supported");
  for (const char* key : {"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                          "output_multiplier_scale", "rotary_pct"}) {
    RequireOne(json, key);
  }
  if (const auto moe = json.Object("moe"); moe && moe->Int("num_experts", 0) > 0) {
    moe->Fail("num_experts", "mixtures of experts are not supported");
  }
}

// Of keys and values: for what cache they have scales.
struct CacheAlgo {
  std::string_view name;
  DType type;
};
constexpr std::array kCacheAlgos = {CacheAlgo{"FP8", DType::kF8E4M3},
                                    CacheAlgo{"INT8", DType::kI8}};
// What quant_algo has no name for is described under a key of ours.
constexpr std::string_view kMixed = "MIXED_PRECISION";
constexpr const char* kSchemesKey = "tandem_schemes";

using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;

// The groups' size, zero points and input factors have keys of their own. The first name of a
// scheme is written.
struct Algo {
  std::string_view name;
  QuantScheme scheme;
  bool grouped = false;
};
constexpr std::array kAlgos = {
    Algo{"FP8", Fp8Scheme(Inputs::kStatic)},
    Algo{"FP8_PER_CHANNEL_PER_TOKEN", Fp8Scheme(Inputs::kDynamic)},
    Algo{"FP8_ROWWISE", Fp8Scheme(Inputs::kDynamic)},
    Algo{"W8A16", {.element = Element::kInt8, .block_rows = 1}},
    Algo{"W4A16", {.element = Element::kInt4, .block_rows = 1}},
    Algo{"W4A16_AWQ", {.element = Element::kInt4, .block_rows = 1}, true},
    Algo{"W4A16_GPTQ", {.element = Element::kInt4, .block_rows = 1}, true},
    Algo{"W8A16_GPTQ", {.element = Element::kInt8, .block_rows = 1}, true},
    Algo{"W4A8_AWQ", {.element = Element::kInt4, .block_rows = 1, .inputs = Inputs::kStatic}, true},
    Algo{"W8A8_SQ_PER_CHANNEL",
         {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kStatic}},
    Algo{"W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
         {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kStatic}},
    Algo{"W8A8_SQ_PER_TENSOR_PLUGIN",
         {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kStatic}},
    Algo{"W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
         {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic}},
    Algo{"W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
         {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic}},
};

const Algo* FindAlgo(const QuantScheme& scheme) {
  const bool grouped = scheme.block_columns > 0;
  for (const Algo& algo : kAlgos) {
    const QuantScheme& known = algo.scheme;
    if (known.element == scheme.element && known.inputs == scheme.inputs &&
        algo.grouped == grouped && scheme.block_rows == 1 && !scheme.input_order &&
        (algo.grouped || !scheme.input_factors)) {
      return &algo;
    }
  }
  return nullptr;
}

QuantScheme ReadScheme(const JsonFields& json) {
  const auto* const algo = std::ranges::find(kAlgos, json.Text("quant_algo"), &Algo::name);
  if (algo == kAlgos.end()) {
    std::string names;
    for (const Algo& known : kAlgos) names += (names.empty() ? "" : ", ") + std::string(known.name);
    Refuse(json, "quant_algo", "; supported are " + names);
    return {};
  }
  QuantScheme scheme = algo->scheme;
  if (algo->grouped) scheme.block_columns = json.Int("group_size", 128);
  scheme.zero_points = json.Bool("has_zero_point", false);
  scheme.input_factors = json.Bool("pre_quant_scale", false);
  return scheme;
}

Json SchemeToJson(const ModelSpec& spec) {
  const QuantScheme& scheme = spec.quantization;
  Json json = {{"quant_algo", nullptr}, {"kv_cache_quant_algo", nullptr}};
  if (spec.cache_scales) {
    json["kv_cache_quant_algo"] =
        std::ranges::find(kCacheAlgos, *spec.cache_scales, &CacheAlgo::type)->name;
  }
  if (scheme.is_plain() && spec.exceptions.empty()) return json;
  const Algo* const algo = FindAlgo(scheme);
  if (algo == nullptr || !spec.exceptions.empty()) {
    const Json all = Json::parse(SpecToJson(spec));
    json["quant_algo"] = kMixed;
    json[kSchemesKey] = {{"quantization", all["quantization"]}, {"exceptions", all["exceptions"]}};
    return json;
  }
  json["quant_algo"] = algo->name;
  if (scheme.element == Element::kFp8E4M3) return json;
  json["has_zero_point"] = scheme.zero_points;
  json["pre_quant_scale"] = scheme.input_factors;
  if (algo->grouped) json["group_size"] = scheme.block_columns;
  return json;
}

void ReadAlgos(const JsonFields& json, CheckpointConfig& config) {
  ModelSpec& spec = config.spec;
  const auto quantization = json.Object("quantization");
  if (!quantization) return;
  if (const auto schemes = quantization->Object(kSchemesKey)) {
    config.describes_each_weight = true;
    ReadSchemes(*schemes, spec);
  } else if (quantization->Has("quant_algo")) {
    spec.quantization = ReadScheme(*quantization);
  }
  if (!quantization->Has("kv_cache_quant_algo")) return;
  const auto* const cache =
      std::ranges::find(kCacheAlgos, quantization->Text("kv_cache_quant_algo"), &CacheAlgo::name);
  if (cache == kCacheAlgos.end()) {
    return Refuse(*quantization, "kv_cache_quant_algo", "; supported are FP8 and INT8");
  }
  spec.cache_scales = cache->type;
}

Sharding ReadSharding(const JsonFields& json) {
  Sharding sharding;
  if (const auto mapping = json.Object("mapping")) {
    sharding.tp_size = mapping->Int("tp_size", 1);
    sharding.pp_size = mapping->Int("pp_size", 1);
    RequireOne(*mapping, "cp_size");
    if (mapping->Has("pp_partition")) Refuse(*mapping, "pp_partition", "; it must be null");
    // Sizes out of range have an error of their own.
    const bool fit = std::max(sharding.tp_size, sharding.pp_size) <= kMaxLayers;
    const int64_t files = fit ? sharding.num_files() : 0;
    const int64_t world_size = mapping->Int("world_size", files);
    if (fit && world_size != files) {
      mapping->Fail("world_size", "must equal tp_size * pp_size, found " +
                                      std::to_string(world_size) + " and " + std::to_string(files));
    }
  }
  sharding.parallel_embedding = json.Bool("use_parallel_embedding", false);
  sharding.embedding_dim = json.Int("embedding_sharding_dim", 0);
  if (sharding.embedding_dim != 0 && sharding.embedding_dim != 1) {
    json.Fail("embedding_sharding_dim", "must be 0 or 1");
  }
  return sharding;
}

LayerSpec ReadLayer(const JsonFields& json, const CheckpointForm& form, ModelSpec& spec) {
  LayerSpec layer;
  AttentionSpec& attention = layer.attention;
  attention.num_heads = json.Int("num_attention_heads");
  attention.num_kv_heads = json.Int("num_key_value_heads", attention.num_heads);
  attention.head_dim =
      json.Int("head_size", attention.num_heads > 0 ? spec.hidden_size / attention.num_heads : 0);
  attention.qkv_bias = json.Bool("attn_bias", form.qkv_bias);
  attention.out_bias = attention.qkv_bias && form.out_bias;
  attention.head_norm = form.head_norm;
  attention.rope.dim = attention.head_dim;
  attention.rope.theta = json.Number("rotary_base", attention.rope.theta);
  if (const auto scaling = json.Object("rotary_scaling")) {
    attention.rope.scaling = ReadRopeScaling(*scaling, spec.max_positions, spec.max_positions);
  }
  layer.mlp.intermediate_size = json.Int("intermediate_size", 4 * spec.hidden_size);
  layer.mlp.bias = json.Bool("mlp_bias", false);
  return layer;
}

const Family* FindCheckpointFamily(const JsonFields& json, const std::string& architecture) {
  std::string known;
  for (const Family& family : Families()) {
    const std::string_view name = family.checkpoint.architecture;
    if (name.empty()) continue;
    if (name == architecture) return &family;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  json.Fail("architecture", "checkpoints of " + json.Shown("architecture") +
                                " are not supported; supported are: " + known +
                                "; give the Hugging Face folder instead");
  return nullptr;
}

void ReadKeys(const JsonFields& json, CheckpointConfig& config) {
  const Family* const family = FindCheckpointFamily(json, json.Text("architecture"));
  if (family == nullptr) return;
  RefuseUnsupported(json);
  ModelSpec& spec = config.spec;
  spec.family = std::string(family->name);
  spec.architecture = family->architectures.front();
  const std::string dtype = json.Text("dtype");
  const auto parsed = ParseDType(dtype);
  if (parsed && IsFloat(*parsed)) {
    spec.dtype = *parsed;
  } else {
    json.Fail("dtype", json.Shown("dtype") + " is not float32, float16 or bfloat16");
  }
  spec.vocab_size = json.Int("vocab_size");
  spec.hidden_size = json.Int("hidden_size");
  spec.max_positions = json.Int("max_position_embeddings");
  spec.norm.epsilon = json.Number("norm_epsilon", 1e-5);
  spec.tied_head = json.Bool("tie_word_embeddings", false);
  spec.bos_ids = ReadIds(json, "bos_token_id", spec.vocab_size);
  spec.eos_ids = ReadIds(json, "eos_token_id", spec.vocab_size);
  spec.layers = RepeatLayer(json, "num_hidden_layers", ReadLayer(json, family->checkpoint, spec));
  ReadAlgos(json, config);
}

// Whether reading these keys gives the same model. Its quantization has keys of its own.
bool KeysSayAllOf(const ModelSpec& spec) {
  const Family* const family = FamilyOf(spec);
  if (family == nullptr || family->checkpoint.architecture.empty()) return false;
  const Result<JsonFields> keys = JsonFields::Parse(KeysOf(spec).dump());
  CheckpointConfig read;
  ReadKeys(*keys, read);
  read.spec.quantization = spec.quantization;
  read.spec.exceptions = spec.exceptions;
  read.spec.cache_scales = spec.cache_scales;
  return keys->status().ok() && read.spec == spec;
}

}  // namespace

std::string CheckpointConfigToJson(const CheckpointConfig& config) {
  const ModelSpec& spec = config.spec;
  const Sharding& sharding = config.sharding;
  Json json = KeysSayAllOf(spec) ? KeysOf(spec) : DescriptionOf(spec);
  json["use_parallel_embedding"] = sharding.parallel_embedding;
  json["embedding_sharding_dim"] = sharding.embedding_dim;
  json["mapping"] = {{"world_size", sharding.num_files()},
                     {"tp_size", sharding.tp_size},
                     {"pp_size", sharding.pp_size},
                     {"cp_size", 1}};
  json["quantization"] = SchemeToJson(spec);
  return json.dump(4, ' ', true, Json::error_handler_t::replace) + "\n";
}

Result<CheckpointConfig> ReadCheckpointConfig(const JsonFields& json) {
  CheckpointConfig config;
  const auto model = json.Object(kModelKey);
  if (model) {
    config.spec = ReadSpec(*model);
  } else {
    ReadKeys(json, config);
  }
  config.sharding = ReadSharding(json);
  TANDEM_RETURN_IF_ERROR(json.status());
  TANDEM_RETURN_IF_ERROR(ValidateSpec(config.spec, model ? FieldKey : KeyOf));
  TANDEM_RETURN_IF_ERROR(CheckSharding(config.spec, config.sharding));
  return config;
}

}  // namespace tandem
