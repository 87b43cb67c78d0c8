// A ModelSpec as the JSON that engines hold, and checkpoints of layers that TensorRT-LLM's keys do
// not describe. Fields() lists the keys of each struct once, for a Writer and a Reader.
#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "model/json_fields.h"
#include "model/spec.h"
#include "model/weight_roles.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

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

// A number out of range becomes -1, which ValidateSpec refuses with its name.
int32_t ToInt32(int64_t value) {
  const bool fits = value >= 0 && value <= std::numeric_limits<int32_t>::max();
  return fits ? static_cast<int32_t>(value) : -1;
}

// Writes fields in the order in which they are listed.
class Writer {
 public:
  static constexpr bool kReads = false;
  explicit Writer(Json& json) : json_(json) {}

  template <typename Value>
  void Required(const char* key, const Value& value) {
    json_[key] = value;
  }
  void Required(const char* key, DType value) { json_[key] = DTypeName(value); }
  template <typename Value>
  void Optional(const char* key, const Value& value) {
    Required(key, value);
  }
  template <typename Enum, size_t kCount>
  void Named(const char* key, Enum value, const std::array<std::string_view, kCount>& names) {
    json_[key] = NameOf(names, value);
  }
  // null unless `present`.
  template <typename Struct>
  void Object(const char* key, const Struct& value, bool present = true) {
    json_[key] = present ? ToJson(value) : Json();
  }
  template <typename Struct>
  void RequiredObject(const char* key, const Struct& value) {
    Object(key, value);
  }
  // Equal neighbours are one object with their count.
  void Runs(const char* key, const std::vector<LayerSpec>& layers);
  template <typename Struct>
  void List(const char* key, const std::vector<Struct>& values) {
    Json& list = json_[key] = Json::array();
    for (const Struct& value : values) list.push_back(ToJson(value));
  }
  void Role(const char* key, WeightRole role) { json_[key] = RowOf(role).hf_name; }

  template <typename Struct>
  static Json ToJson(const Struct& value) {
    Json json;
    Writer writer(json);
    Fields(writer, value);
    return json;
  }

 private:
  Json& json_;
};

// Reads them. An optional field that is absent stays as it is.
class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(const JsonFields& json) : json_(json) {}

  template <typename Value>
  void Required(const char* key, Value& value) {
    if (!json_.Has(key)) json_.Fail(key, "is missing");
    Optional(key, value);
  }
  void Optional(const char* key, int64_t& value) { value = json_.Int(key, value); }
  void Optional(const char* key, int32_t& value) { value = ToInt32(json_.Int(key, value)); }
  void Optional(const char* key, double& value) { value = json_.Number(key, value); }
  void Optional(const char* key, float& value) {
    value = static_cast<float>(json_.Number(key, value));
  }
  void Optional(const char* key, bool& value) { value = json_.Bool(key, value); }
  void Optional(const char* key, std::string& value) { value = json_.Text(key, value); }
  void Optional(const char* key, std::vector<double>& value) { value = json_.Numbers(key); }
  void Optional(const char* key, std::vector<int32_t>& value) {
    value.clear();
    for (const int64_t number : json_.Ints(key)) value.push_back(ToInt32(number));
  }
  void Optional(const char* key, DType& value) {
    const auto parsed = ParseDType(json_.Text(key, DTypeName(value)));
    if (!parsed) json_.Fail(key, json_.Shown(key) + " is not known");
    value = parsed.value_or(value);
  }
  template <typename Enum, size_t kCount>
  void Named(const char* key, Enum& value, const std::array<std::string_view, kCount>& names) {
    value = NamedValue<Enum>(json_, key, names);
  }
  template <typename Struct>
  void Object(const char* key, Struct& value, bool /*present*/ = true) {
    if (const auto object = json_.Object(key)) Read(*object, value);
  }
  template <typename Struct>
  void RequiredObject(const char* key, Struct& value) {
    if (!json_.Has(key)) json_.Fail(key, "is missing");
    Object(key, value);
  }
  void Runs(const char* key, std::vector<LayerSpec>& layers);
  template <typename Struct>
  void List(const char* key, std::vector<Struct>& values) {
    values.clear();
    for (const JsonFields& entry : json_.Objects(key)) Read(entry, values.emplace_back());
  }
  void Role(const char* key, WeightRole& role) {
    const auto row = std::ranges::find(WeightRows(), json_.Text(key), &WeightRow::hf_name);
    if (row == WeightRows().end()) {
      json_.Fail(key, json_.Shown(key) + " is not the name of a weight");
    } else {
      role = row->role;
    }
  }

  template <typename Struct>
  static void Read(const JsonFields& json, Struct& value) {
    Reader reader(json);
    Fields(reader, value);
  }

 private:
  const JsonFields& json_;
};

// Struct is const for a Writer.
template <typename Struct, typename Plain>
concept Either = std::same_as<std::remove_const_t<Struct>, Plain>;

void Fields(auto& io, Either<RopeSpec> auto& rope) {
  auto& scaling = rope.scaling;
  io.Required("dim", rope.dim);
  io.Optional("interleaved", rope.interleaved);
  io.Optional("halves", rope.halves);
  io.Optional("fp16_frequencies", rope.fp16_frequencies);
  io.Required("theta", rope.theta);
  io.Named("scaling", scaling.kind, kScalingNames);
  io.Optional("factor", scaling.factor);
  io.Optional("low_freq_factor", scaling.low_freq_factor);
  io.Optional("high_freq_factor", scaling.high_freq_factor);
  io.Optional("beta_fast", scaling.beta_fast);
  io.Optional("beta_slow", scaling.beta_slow);
  io.Optional("truncate", scaling.truncate);
  io.Optional("attention_factor", scaling.attention_factor);
  io.Optional("short_factors", scaling.short_factors);
  io.Optional("long_factors", scaling.long_factors);
  io.Optional("original_max_positions", scaling.original_max_positions);
}

void Fields(auto& io, Either<QueryGrowth> auto& growth) {
  io.Named("kind", growth.kind, kGrowthNames);
  io.Required("length", growth.length);
  io.Required("factor", growth.factor);
}

void Fields(auto& io, Either<LatentSpec> auto& latent) {
  io.Required("rank", latent.rank);
  io.Required("query_rank", latent.query_rank);
  io.Required("key_dim", latent.key_dim);
  io.Required("value_dim", latent.value_dim);
  io.Required("norm_epsilon", latent.norm_epsilon);
}

void Fields(auto& io, Either<AttentionSpec> auto& attention) {
  io.Required("num_heads", attention.num_heads);
  io.Required("num_kv_heads", attention.num_kv_heads);
  io.Required("head_dim", attention.head_dim);
  io.Object("latent", attention.latent, attention.has_latents());
  io.Optional("qkv_bias", attention.qkv_bias);
  io.Optional("out_bias", attention.out_bias);
  io.Named("head_norm", attention.head_norm, kHeadNormNames);
  io.Optional("scale", attention.scale);
  io.Optional("soft_cap", attention.soft_cap);
  io.Optional("alibi_scale", attention.alibi_scale);
  io.Optional("window", attention.window);
  io.Optional("chunk", attention.chunk);
  io.Optional("sinks", attention.sinks);
  io.Object("query_growth", attention.growth);
  io.Object("rope", attention.rope);
}

void Fields(auto& io, Either<MlpSpec> auto& mlp) {
  io.Required("intermediate_size", mlp.intermediate_size);
  io.Named("activation", mlp.activation, kActivationNames);
  io.Optional("gated", mlp.gated);
  io.Optional("bias", mlp.bias);
}

void Fields(auto& io, Either<ops::RoutingRule> auto& rule) {
  io.Named("function", rule.function, kRoutingNames);
  io.Optional("chosen_first", rule.chosen_first);
  io.Required("experts_per_token", rule.experts_per_token);
  io.Required("num_groups", rule.num_groups);
  io.Required("chosen_groups", rule.chosen_groups);
  io.Named("group_value", rule.group_value, kGroupValueNames);
  io.Optional("others_count_zero", rule.others_count_zero);
  io.Optional("renormalise", rule.renormalise);
  io.Required("scale", rule.scale);
}

void Fields(auto& io, Either<MoeSpec> auto& moe) {
  io.Required("num_experts", moe.num_experts);
  io.Object("expert", moe.expert);
  io.Object("routing", moe.routing);
  io.Optional("limit", moe.limit);
  io.Optional("router_bias", moe.router_bias);
  io.Optional("correction", moe.correction);
  io.Optional("shared_gate", moe.shared_gate);
  io.Optional("scales_inputs", moe.scales_inputs);
}

void Fields(auto& io, Either<LayerSpec> auto& layer) {
  io.Object("attention", layer.attention);
  io.Object("mlp", layer.mlp);
  io.Object("moe", layer.moe, layer.moe.num_experts > 0);
  io.Named("residual", layer.residual, kResidualNames);
  io.Optional("alpha", layer.alpha);
}

void Fields(auto& io, Either<QuantScheme> auto& scheme) {
  io.Named("element", scheme.element, kElementNames);
  io.Optional("block_rows", scheme.block_rows);
  io.Optional("block_columns", scheme.block_columns);
  io.Optional("zero_points", scheme.zero_points);
  io.Optional("input_factors", scheme.input_factors);
  io.Optional("input_order", scheme.input_order);
  io.Named("inputs", scheme.inputs, kInputNames);
}

void Fields(auto& io, Either<SchemeException> auto& exception) {
  io.Role("weight", exception.role);
  io.Optional("layer", exception.layer);
  io.RequiredObject("quantization", exception.scheme);
}

void Fields(auto& io, Either<NormSpec> auto& norm) {
  io.Named("kind", norm.kind, kNormNames);
  io.Required("epsilon", norm.epsilon);
  io.Optional("weight_offset", norm.weight_offset);
  io.Optional("bias", norm.bias);
}

void Fields(auto& io, Either<PrefixSpec> auto& prefix) {
  io.Optional("start_id", prefix.start_id);
  io.Optional("mask_ids", prefix.mask_ids);
}

void SchemeFields(auto& io, Either<ModelSpec> auto& spec) {
  io.Object("quantization", spec.quantization);
  io.List("exceptions", spec.exceptions);
}

void Fields(auto& io, Either<ModelSpec> auto& spec) {
  io.Required("family", spec.family);
  io.Required("architecture", spec.architecture);
  io.Required("dtype", spec.dtype);
  io.Required("vocab_size", spec.vocab_size);
  io.Required("hidden_size", spec.hidden_size);
  io.Required("max_positions", spec.max_positions);
  io.Object("norm", spec.norm);
  io.Runs("layers", spec.layers);
  io.Optional("position_rows", spec.position_rows);
  io.Optional("second_position_rows", spec.second_position_rows);
  io.Object("prefix", spec.prefix);
  io.Optional("embedding_scale", spec.embedding_scale);
  io.Optional("embedding_norm", spec.embedding_norm);
  io.Optional("tied_head", spec.tied_head);
  io.Optional("head_bias", spec.head_bias);
  io.Optional("head_normed", spec.head_normed);
  io.Optional("logit_scale", spec.logit_scale);
  io.Optional("logit_cap", spec.logit_cap);
  SchemeFields(io, spec);
  bool scaled = spec.cache_scales.has_value();
  DType cache = spec.cache_scales.value_or(DType::kF8E4M3);
  io.Optional("cache_scales", scaled);
  io.Optional("cache_scales_type", cache);
  if constexpr (std::remove_reference_t<decltype(io)>::kReads) {
    if (scaled) spec.cache_scales = cache;
  }
  io.Optional("bos_ids", spec.bos_ids);
  io.Optional("eos_ids", spec.eos_ids);
}

void Writer::Runs(const char* key, const std::vector<LayerSpec>& layers) {
  Json& runs = json_[key] = Json::array();
  for (auto first = layers.begin(); first != layers.end();) {
    const auto end =
        std::find_if(first, layers.end(), [&](auto& layer) { return layer != *first; });
    Json& run = runs.emplace_back(Json{{"count", end - first}});
    run.update(ToJson(*first));
    first = end;
  }
}

void Reader::Runs(const char* key, std::vector<LayerSpec>& layers) {
  for (const JsonFields& run : json_.Objects(key)) {
    const int64_t count = run.Int("count", 1);
    if (count < 1 || count > kMaxLayers - static_cast<int64_t>(layers.size())) {
      run.Fail("count", run.Shown("count") + " makes no number of layers between 1 and " +
                            std::to_string(kMaxLayers));
      break;
    }
    LayerSpec layer;
    Read(run, layer);
    layers.insert(layers.end(), static_cast<size_t>(count), layer);
  }
}

}  // namespace

std::string_view ScalingName(RopeScaling::Kind kind) {
  return kScalingNames[static_cast<size_t>(kind)];
}

std::string SpecToJson(const ModelSpec& spec) {
  return Writer::ToJson(spec).dump(2, ' ', true, Json::error_handler_t::replace);
}

void ReadSchemes(const JsonFields& json, ModelSpec& spec) {
  Reader reader(json);
  SchemeFields(reader, spec);
}

ModelSpec ReadSpec(const JsonFields& json) {
  ModelSpec spec;
  Reader::Read(json, spec);
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
