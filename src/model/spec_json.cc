// A ModelSpec as the JSON that engines hold, and checkpoints of layers that TensorRT-LLM's keys do
// not describe.
#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/json_fields.h"
#include "model/spec.h"
#include "model/weight_roles.h"

namespace tandem {
namespace {

// In the order of their enums.
constexpr std::array<std::string_view, 7> kScalingNames = {"none", "linear",   "dynamic",  "llama3",
                                                           "yarn", "longrope", "ntk_steps"};
constexpr std::array<std::string_view, 3> kGrowthNames = {"none", "log_n", "steps"};
constexpr std::array<std::string_view, 2> kNormNames = {"rms", "layer"};
constexpr std::array<std::string_view, 5> kHeadNormNames = {"none", "head", "all_heads",
                                                            "heads_own", "unweighted"};
constexpr std::array<std::string_view, 5> kActivationNames = {"silu", "gelu", "gelu_tanh", "relu",
                                                              "clamped_swiglu"};
constexpr std::array<std::string_view, 2> kRoutingNames = {"softmax", "sigmoid"};
constexpr std::array<std::string_view, 2> kGroupValueNames = {"largest", "two_largest"};
constexpr std::array<std::string_view, 6> kResidualNames = {
    "pre_norm", "sandwich", "post_norm", "parallel", "parallel_norms", "normed"};
constexpr std::array<std::string_view, 5> kElementNames = {"plain", "fp8_e4m3", "int8", "int4",
                                                           "fp4_e2m1"};
constexpr std::array<std::string_view, 3> kInputNames = {"plain", "dynamic", "static"};

std::vector<int32_t> ToIds(const std::vector<int64_t>& values) {
  std::vector<int32_t> ids;
  for (const int64_t value : values) {
    // A number out of range becomes -1, which ValidateSpec refuses with its name.
    const bool fits = value >= 0 && value <= std::numeric_limits<int32_t>::max();
    ids.push_back(fits ? static_cast<int32_t>(value) : -1);
  }
  return ids;
}

// The name of an enum value.
template <typename Enum, size_t kCount>
std::string_view NameOf(const std::array<std::string_view, kCount>& names, Enum value) {
  const auto index = static_cast<size_t>(value);
  TANDEM_CHECK(index < kCount, "an enum value without a name");
  return names[index];
}

// The enum value of that name.
template <typename Enum, size_t kCount>
Enum NamedValue(const JsonFields& json, std::string_view key,
                const std::array<std::string_view, kCount>& names) {
  const std::string name = json.Text(key);
  std::string known;
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
    known += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  json.Fail(key, json.Shown(key) + " is none of " + known);
  return Enum{};
}

RopeSpec RopeFromJson(const JsonFields& json) {
  RopeSpec rope;
  RopeScaling& scaling = rope.scaling;
  rope.dim = json.Int("dim");
  rope.interleaved = json.Bool("interleaved", false);
  rope.halves = json.Bool("halves", false);
  rope.fp16_frequencies = json.Bool("fp16_frequencies", false);
  rope.theta = json.Number("theta");
  scaling.kind = NamedValue<RopeScaling::Kind>(json, "scaling", kScalingNames);
  scaling.factor = json.Number("factor", scaling.factor);
  scaling.low_freq_factor = json.Number("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = json.Number("high_freq_factor", scaling.high_freq_factor);
  scaling.beta_fast = json.Number("beta_fast", scaling.beta_fast);
  scaling.beta_slow = json.Number("beta_slow", scaling.beta_slow);
  scaling.truncate = json.Bool("truncate", scaling.truncate);
  scaling.attention_factor = json.Number("attention_factor", scaling.attention_factor);
  scaling.short_factors = json.Numbers("short_factors");
  scaling.long_factors = json.Numbers("long_factors");
  scaling.original_max_positions = json.Int("original_max_positions", 0);
  return rope;
}

nlohmann::ordered_json RopeToJson(const RopeSpec& rope) {
  const RopeScaling& scaling = rope.scaling;
  return {{"dim", rope.dim},
          {"interleaved", rope.interleaved},
          {"halves", rope.halves},
          {"fp16_frequencies", rope.fp16_frequencies},
          {"theta", rope.theta},
          {"scaling", NameOf(kScalingNames, scaling.kind)},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"beta_fast", scaling.beta_fast},
          {"beta_slow", scaling.beta_slow},
          {"truncate", scaling.truncate},
          {"attention_factor", scaling.attention_factor},
          {"short_factors", scaling.short_factors},
          {"long_factors", scaling.long_factors},
          {"original_max_positions", scaling.original_max_positions}};
}

QueryGrowth GrowthFromJson(const JsonFields& json) {
  return {.kind = NamedValue<QueryGrowth::Kind>(json, "kind", kGrowthNames),
          .length = json.Int("length"),
          .factor = json.Number("factor")};
}

nlohmann::ordered_json GrowthToJson(const QueryGrowth& growth) {
  return {{"kind", NameOf(kGrowthNames, growth.kind)},
          {"length", growth.length},
          {"factor", growth.factor}};
}

LatentSpec LatentFromJson(const JsonFields& json) {
  return {.rank = json.Int("rank"),
          .query_rank = json.Int("query_rank"),
          .key_dim = json.Int("key_dim"),
          .value_dim = json.Int("value_dim"),
          .norm_epsilon = json.Number("norm_epsilon")};
}

nlohmann::ordered_json LatentToJson(const LatentSpec& latent) {
  return {{"rank", latent.rank},
          {"query_rank", latent.query_rank},
          {"key_dim", latent.key_dim},
          {"value_dim", latent.value_dim},
          {"norm_epsilon", latent.norm_epsilon}};
}

MlpSpec MlpFromJson(const JsonFields& json) {
  MlpSpec mlp;
  mlp.intermediate_size = json.Int("intermediate_size");
  mlp.activation = NamedValue<ops::Activation>(json, "activation", kActivationNames);
  mlp.gated = json.Bool("gated", true);
  mlp.bias = json.Bool("bias", false);
  return mlp;
}

nlohmann::ordered_json MlpToJson(const MlpSpec& mlp) {
  return {{"intermediate_size", mlp.intermediate_size},
          {"activation", NameOf(kActivationNames, mlp.activation)},
          {"gated", mlp.gated},
          {"bias", mlp.bias}};
}

// A number out of range becomes 0, which CheckMoe refuses with its name.
int32_t SmallInt(const JsonFields& json, std::string_view key) {
  const int64_t value = json.Int(key);
  return value >= 0 && value <= ops::kMaxExperts ? static_cast<int32_t>(value) : 0;
}

MoeSpec MoeFromJson(const JsonFields& json) {
  MoeSpec moe;
  moe.num_experts = json.Int("num_experts");
  if (const auto expert = json.Object("expert")) moe.expert = MlpFromJson(*expert);
  if (const auto routing = json.Object("routing")) {
    using Rule = ops::RoutingRule;
    Rule& rule = moe.routing;
    rule.function = NamedValue<Rule::Function>(*routing, "function", kRoutingNames);
    rule.chosen_first = routing->Bool("chosen_first", false);
    rule.experts_per_token = SmallInt(*routing, "experts_per_token");
    rule.num_groups = SmallInt(*routing, "num_groups");
    rule.chosen_groups = SmallInt(*routing, "chosen_groups");
    rule.group_value = NamedValue<Rule::GroupValue>(*routing, "group_value", kGroupValueNames);
    rule.others_count_zero = routing->Bool("others_count_zero", false);
    rule.renormalise = routing->Bool("renormalise", false);
    rule.scale = static_cast<float>(routing->Number("scale"));
  }
  moe.limit = json.Number("limit", 0.0);
  moe.router_bias = json.Bool("router_bias", false);
  moe.correction = json.Bool("correction", false);
  moe.shared_gate = json.Bool("shared_gate", false);
  moe.scales_inputs = json.Bool("scales_inputs", false);
  return moe;
}

nlohmann::ordered_json MoeToJson(const MoeSpec& moe) {
  const ops::RoutingRule& rule = moe.routing;
  return {{"num_experts", moe.num_experts},
          {"expert", MlpToJson(moe.expert)},
          {"routing",
           {{"function", NameOf(kRoutingNames, rule.function)},
            {"chosen_first", rule.chosen_first},
            {"experts_per_token", rule.experts_per_token},
            {"num_groups", rule.num_groups},
            {"chosen_groups", rule.chosen_groups},
            {"group_value", NameOf(kGroupValueNames, rule.group_value)},
            {"others_count_zero", rule.others_count_zero},
            {"renormalise", rule.renormalise},
            {"scale", rule.scale}}},
          {"limit", moe.limit},
          {"router_bias", moe.router_bias},
          {"correction", moe.correction},
          {"shared_gate", moe.shared_gate},
          {"scales_inputs", moe.scales_inputs}};
}

LayerSpec LayerFromJson(const JsonFields& json) {
  LayerSpec layer;
  if (const auto attention = json.Object("attention")) {
    layer.attention.num_heads = attention->Int("num_heads");
    layer.attention.num_kv_heads = attention->Int("num_kv_heads");
    layer.attention.head_dim = attention->Int("head_dim");
    if (const auto latent = attention->Object("latent")) {
      layer.attention.latent = LatentFromJson(*latent);
    }
    layer.attention.qkv_bias = attention->Bool("qkv_bias", false);
    layer.attention.out_bias = attention->Bool("out_bias", false);
    layer.attention.head_norm = NamedValue<HeadNorm>(*attention, "head_norm", kHeadNormNames);
    layer.attention.scale = attention->Number("scale", 0.0);
    layer.attention.soft_cap = attention->Number("soft_cap", 0.0);
    layer.attention.alibi_scale = attention->Number("alibi_scale", 0.0);
    layer.attention.window = attention->Int("window", 0);
    layer.attention.chunk = attention->Int("chunk", 0);
    layer.attention.sinks = attention->Bool("sinks", false);
    if (const auto growth = attention->Object("query_growth")) {
      layer.attention.growth = GrowthFromJson(*growth);
    }
    if (const auto rope = attention->Object("rope")) layer.attention.rope = RopeFromJson(*rope);
  }
  if (const auto mlp = json.Object("mlp")) layer.mlp = MlpFromJson(*mlp);
  if (const auto moe = json.Object("moe")) layer.moe = MoeFromJson(*moe);
  layer.residual = NamedValue<Residual>(json, "residual", kResidualNames);
  layer.alpha = json.Number("alpha", 1.0);
  return layer;
}

nlohmann::ordered_json LayerToJson(const LayerSpec& layer, int64_t count) {
  const bool has_experts = layer.moe.num_experts > 0;
  return {{"count", count},
          {"attention",
           {{"num_heads", layer.attention.num_heads},
            {"num_kv_heads", layer.attention.num_kv_heads},
            {"head_dim", layer.attention.head_dim},
            {"latent", layer.attention.has_latents() ? LatentToJson(layer.attention.latent)
                                                     : nlohmann::ordered_json()},
            {"qkv_bias", layer.attention.qkv_bias},
            {"out_bias", layer.attention.out_bias},
            {"head_norm", NameOf(kHeadNormNames, layer.attention.head_norm)},
            {"scale", layer.attention.scale},
            {"soft_cap", layer.attention.soft_cap},
            {"alibi_scale", layer.attention.alibi_scale},
            {"window", layer.attention.window},
            {"chunk", layer.attention.chunk},
            {"sinks", layer.attention.sinks},
            {"query_growth", GrowthToJson(layer.attention.growth)},
            {"rope", RopeToJson(layer.attention.rope)}}},
          {"mlp", MlpToJson(layer.mlp)},
          {"moe", has_experts ? MoeToJson(layer.moe) : nlohmann::ordered_json()},
          {"residual", NameOf(kResidualNames, layer.residual)},
          {"alpha", layer.alpha}};
}

// Consecutive equal layers are one entry with their count.
nlohmann::ordered_json LayersToJson(const std::vector<LayerSpec>& layers) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    json.push_back(LayerToJson(layers[i], static_cast<int64_t>(end - i)));
    i = end;
  }
  return json;
}

std::vector<LayerSpec> LayersFromJson(const JsonFields& json) {
  std::vector<LayerSpec> layers;
  for (const JsonFields& run : json.Objects("layers")) {
    const int64_t count = run.Int("count", 1);
    if (count < 1 || count > kMaxLayers - static_cast<int64_t>(layers.size())) {
      run.Fail("count", run.Shown("count") + " makes no number of layers between 1 and " +
                            std::to_string(kMaxLayers));
      break;
    }
    layers.insert(layers.end(), static_cast<size_t>(count), LayerFromJson(run));
  }
  return layers;
}

nlohmann::ordered_json SchemeToJson(const QuantScheme& scheme) {
  return {{"element", NameOf(kElementNames, scheme.element)},
          {"block_rows", scheme.block_rows},
          {"block_columns", scheme.block_columns},
          {"zero_points", scheme.zero_points},
          {"input_factors", scheme.input_factors},
          {"input_order", scheme.input_order},
          {"inputs", NameOf(kInputNames, scheme.inputs)}};
}

QuantScheme SchemeFromJson(const JsonFields& json) {
  QuantScheme scheme;
  scheme.element = NamedValue<QuantScheme::Element>(json, "element", kElementNames);
  scheme.block_rows = json.Int("block_rows", 0);
  scheme.block_columns = json.Int("block_columns", 0);
  scheme.zero_points = json.Bool("zero_points", false);
  scheme.input_factors = json.Bool("input_factors", false);
  scheme.input_order = json.Bool("input_order", false);
  scheme.inputs = NamedValue<QuantScheme::Inputs>(json, "inputs", kInputNames);
  return scheme;
}

nlohmann::ordered_json ExceptionsToJson(const std::vector<SchemeException>& exceptions) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const SchemeException& exception : exceptions) {
    json.push_back({{"weight", RowOf(exception.role).hf_name},
                    {"layer", exception.layer},
                    {"quantization", SchemeToJson(exception.scheme)}});
  }
  return json;
}

std::vector<SchemeException> ExceptionsFromJson(const JsonFields& json) {
  std::vector<SchemeException> exceptions;
  for (const JsonFields& entry : json.Objects("exceptions")) {
    const std::string name = entry.Text("weight");
    const auto row = std::ranges::find(WeightRows(), name, &WeightRow::hf_name);
    const auto scheme = entry.Object("quantization");
    if (row == WeightRows().end() || !scheme) {
      entry.Fail("weight", "\"" + name + "\" is not the name of a weight with its quantization");
      break;
    }
    exceptions.push_back({row->role, entry.Int("layer", 0), SchemeFromJson(*scheme)});
  }
  return exceptions;
}

}  // namespace

std::string SpecToJson(const ModelSpec& spec) {
  const nlohmann::ordered_json json = {
      {"family", spec.family},
      {"architecture", spec.architecture},
      {"dtype", DTypeName(spec.dtype)},
      {"vocab_size", spec.vocab_size},
      {"hidden_size", spec.hidden_size},
      {"max_positions", spec.max_positions},
      {"norm",
       {{"kind", NameOf(kNormNames, spec.norm.kind)},
        {"epsilon", spec.norm.epsilon},
        {"weight_offset", spec.norm.weight_offset},
        {"bias", spec.norm.bias}}},
      {"layers", LayersToJson(spec.layers)},
      {"position_rows", spec.position_rows},
      {"second_position_rows", spec.second_position_rows},
      {"prefix", {{"start_id", spec.prefix.start_id}, {"mask_ids", spec.prefix.mask_ids}}},
      {"embedding_scale", spec.embedding_scale},
      {"embedding_norm", spec.embedding_norm},
      {"tied_head", spec.tied_head},
      {"head_bias", spec.head_bias},
      {"head_normed", spec.head_normed},
      {"logit_scale", spec.logit_scale},
      {"logit_cap", spec.logit_cap},
      {"quantization", SchemeToJson(spec.quantization)},
      {"exceptions", ExceptionsToJson(spec.exceptions)},
      {"cache_scales", spec.cache_scales.has_value()},
      {"cache_scales_type", DTypeName(spec.cache_scales.value_or(DType::kF8E4M3))},
      {"bos_ids", spec.bos_ids},
      {"eos_ids", spec.eos_ids},
  };
  return json.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

void ReadSchemes(const JsonFields& json, ModelSpec& spec) {
  if (const auto scheme = json.Object("quantization")) {
    spec.quantization = SchemeFromJson(*scheme);
  }
  spec.exceptions = ExceptionsFromJson(json);
}

ModelSpec ReadSpec(const JsonFields& json) {
  ModelSpec spec;
  spec.family = json.Text("family");
  spec.architecture = json.Text("architecture");
  const std::string dtype = json.Text("dtype");
  if (const auto parsed = ParseDType(dtype)) {
    spec.dtype = *parsed;
  } else {
    json.Fail("dtype", "\"" + dtype + "\" is not known");
  }
  spec.vocab_size = json.Int("vocab_size");
  spec.hidden_size = json.Int("hidden_size");
  spec.max_positions = json.Int("max_positions");
  if (const auto norm = json.Object("norm")) {
    spec.norm.kind = NamedValue<NormSpec::Kind>(*norm, "kind", kNormNames);
    spec.norm.epsilon = norm->Number("epsilon");
    spec.norm.weight_offset = norm->Number("weight_offset", 0.0);
    spec.norm.bias = norm->Bool("bias", false);
  }
  spec.layers = LayersFromJson(json);
  spec.position_rows = json.Int("position_rows", 0);
  spec.second_position_rows = json.Int("second_position_rows", 0);
  if (const auto prefix = json.Object("prefix")) {
    spec.prefix.start_id = ToIds({prefix->Int("start_id", -1)}).front();
    spec.prefix.mask_ids = ToIds(prefix->Ints("mask_ids"));
  }
  spec.embedding_scale = json.Number("embedding_scale", 1.0);
  spec.embedding_norm = json.Bool("embedding_norm", false);
  spec.tied_head = json.Bool("tied_head", false);
  spec.head_bias = json.Bool("head_bias", false);
  spec.head_normed = json.Bool("head_normed", false);
  spec.logit_scale = json.Number("logit_scale", 1.0);
  spec.logit_cap = json.Number("logit_cap", 0.0);
  ReadSchemes(json, spec);
  if (json.Bool("cache_scales", false)) {
    spec.cache_scales =
        ParseDType(json.Text("cache_scales_type", DTypeName(DType::kF8E4M3))).value_or(DType::kF32);
  }
  spec.bos_ids = ToIds(json.Ints("bos_ids"));
  spec.eos_ids = ToIds(json.Ints("eos_ids"));
  return spec;
}

Result<ModelSpec> SpecFromJson(const std::string& text) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields json, JsonFields::Parse(text));
  ModelSpec spec = ReadSpec(json);
  TANDEM_RETURN_IF_ERROR(json.status());
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

}  // namespace tandem
