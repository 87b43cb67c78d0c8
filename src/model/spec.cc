#include "model/spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/json_fields.h"

namespace tandem {
namespace {

// Far above every published model, low enough that products of three fit in 63 bits.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;

// In the order of their enums.
constexpr std::array<std::string_view, 4> kScalingNames = {"none", "linear", "dynamic", "llama3"};
constexpr std::array<std::string_view, 2> kElementNames = {"plain", "fp8_e4m3"};
constexpr std::array<std::string_view, 3> kInputNames = {"plain", "dynamic", "static"};

Status CheckRange(const char* field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return {};
  return InvalidArgument(std::string(field) + " is " + std::to_string(value) +
                         "; it must be between 1 and " + std::to_string(max));
}

Status CheckPositive(const char* field, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return InvalidArgument(std::string(field) + " is " + std::to_string(value) +
                         "; it must be a positive number");
}

Status CheckScaling(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kNone) return {};
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.factor", scaling.factor));
  if (scaling.factor < 1.0) return InvalidArgument("rope_scaling.factor must be at least 1");
  TANDEM_RETURN_IF_ERROR(CheckRange("rope_scaling.original_max_positions",
                                    scaling.original_max_positions, kMaxPositions));
  if (scaling.kind != RopeScaling::Kind::kLlama3) return {};
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.low_freq_factor", scaling.low_freq_factor));
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_scaling.high_freq_factor", scaling.high_freq_factor));
  if (scaling.low_freq_factor < scaling.high_freq_factor) return {};
  return InvalidArgument("rope_scaling.low_freq_factor must be below high_freq_factor");
}

Status CheckIds(const char* field, const std::vector<int32_t>& ids, int64_t vocab) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab) continue;
    return InvalidArgument(std::string(field) + " holds " + std::to_string(id) +
                           ", outside the vocabulary of " + std::to_string(vocab));
  }
  return {};
}

std::vector<int32_t> ToIds(const std::vector<int64_t>& values) {
  std::vector<int32_t> ids;
  for (const int64_t value : values) {
    // Out of range becomes -1, which ValidateSpec refuses by name.
    ids.push_back(value >= 0 && value <= kMaxVocab ? static_cast<int32_t>(value) : -1);
  }
  return ids;
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

RopeScaling ScalingFromJson(const JsonFields& json) {
  RopeScaling scaling;
  scaling.kind = NamedValue<RopeScaling::Kind>(json, "kind", kScalingNames);
  scaling.factor = json.Number("factor", scaling.factor);
  scaling.low_freq_factor = json.Number("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = json.Number("high_freq_factor", scaling.high_freq_factor);
  scaling.original_max_positions = json.Int("original_max_positions", 0);
  return scaling;
}

QuantScheme SchemeFromJson(const JsonFields& json) {
  QuantScheme scheme;
  scheme.element = NamedValue<QuantScheme::Element>(json, "element", kElementNames);
  scheme.block_rows = json.Int("block_rows", 0);
  scheme.block_columns = json.Int("block_columns", 0);
  scheme.zero_points = json.Bool("zero_points", false);
  scheme.inputs = NamedValue<QuantScheme::Inputs>(json, "inputs", kInputNames);
  return scheme;
}

}  // namespace

Status ValidateSpec(const ModelSpec& spec) {
  TANDEM_RETURN_IF_ERROR(CheckRange("vocab_size", spec.vocab_size, kMaxVocab));
  TANDEM_RETURN_IF_ERROR(CheckRange("hidden_size", spec.hidden_size, kMaxWidth));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_layers", spec.num_layers, kMaxLayers));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_heads", spec.num_heads, kMaxHeads));
  TANDEM_RETURN_IF_ERROR(CheckRange("num_kv_heads", spec.num_kv_heads, kMaxHeads));
  TANDEM_RETURN_IF_ERROR(CheckRange("head_dim", spec.head_dim, kMaxHeadDim));
  TANDEM_RETURN_IF_ERROR(CheckRange("intermediate_size", spec.intermediate_size, kMaxWidth));
  TANDEM_RETURN_IF_ERROR(CheckRange("max_positions", spec.max_positions, kMaxPositions));
  if (spec.num_heads % spec.num_kv_heads != 0) {
    return InvalidArgument("num_heads (" + std::to_string(spec.num_heads) +
                           ") must be a multiple of num_kv_heads (" +
                           std::to_string(spec.num_kv_heads) + ")");
  }
  if (spec.head_dim % 2 != 0) {
    return InvalidArgument("head_dim is " + std::to_string(spec.head_dim) +
                           "; rotary embeddings need an even one");
  }
  if (spec.dtype != DType::kF32 && spec.dtype != DType::kF16 && spec.dtype != DType::kBF16) {
    return InvalidArgument("dtype is " + std::string(DTypeName(spec.dtype)) +
                           "; it must be float32, float16 or bfloat16");
  }
  TANDEM_RETURN_IF_ERROR(CheckScheme(spec.quantization));
  TANDEM_RETURN_IF_ERROR(CheckPositive("norm_epsilon", spec.norm_epsilon));
  TANDEM_RETURN_IF_ERROR(CheckPositive("rope_theta", spec.rope_theta));
  TANDEM_RETURN_IF_ERROR(CheckScaling(spec.rope_scaling));
  TANDEM_RETURN_IF_ERROR(CheckIds("bos_ids", spec.bos_ids, spec.vocab_size));
  return CheckIds("eos_ids", spec.eos_ids, spec.vocab_size);
}

std::string SpecToJson(const ModelSpec& spec) {
  const RopeScaling& scaling = spec.rope_scaling;
  const QuantScheme& scheme = spec.quantization;
  const nlohmann::ordered_json json = {
      {"family", spec.family},
      {"architecture", spec.architecture},
      {"dtype", DTypeName(spec.dtype)},
      {"vocab_size", spec.vocab_size},
      {"hidden_size", spec.hidden_size},
      {"num_layers", spec.num_layers},
      {"num_heads", spec.num_heads},
      {"num_kv_heads", spec.num_kv_heads},
      {"head_dim", spec.head_dim},
      {"intermediate_size", spec.intermediate_size},
      {"max_positions", spec.max_positions},
      {"norm_epsilon", spec.norm_epsilon},
      {"rope_theta", spec.rope_theta},
      {"rope_scaling",
       {{"kind", kScalingNames[static_cast<size_t>(scaling.kind)]},
        {"factor", scaling.factor},
        {"low_freq_factor", scaling.low_freq_factor},
        {"high_freq_factor", scaling.high_freq_factor},
        {"original_max_positions", scaling.original_max_positions}}},
      {"tied_head", spec.tied_head},
      {"attention_bias", spec.attention_bias},
      {"mlp_bias", spec.mlp_bias},
      {"quantization",
       {{"element", kElementNames[static_cast<size_t>(scheme.element)]},
        {"block_rows", scheme.block_rows},
        {"block_columns", scheme.block_columns},
        {"zero_points", scheme.zero_points},
        {"inputs", kInputNames[static_cast<size_t>(scheme.inputs)]}}},
      {"bos_ids", spec.bos_ids},
      {"eos_ids", spec.eos_ids},
  };
  return json.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

Result<ModelSpec> SpecFromJson(const std::string& text) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields json, JsonFields::Parse(text));
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
  spec.num_layers = json.Int("num_layers");
  spec.num_heads = json.Int("num_heads");
  spec.num_kv_heads = json.Int("num_kv_heads");
  spec.head_dim = json.Int("head_dim");
  spec.intermediate_size = json.Int("intermediate_size");
  spec.max_positions = json.Int("max_positions");
  spec.norm_epsilon = json.Number("norm_epsilon");
  spec.rope_theta = json.Number("rope_theta");
  if (const auto scaling = json.Object("rope_scaling")) {
    spec.rope_scaling = ScalingFromJson(*scaling);
  }
  spec.tied_head = json.Bool("tied_head", false);
  spec.attention_bias = json.Bool("attention_bias", false);
  spec.mlp_bias = json.Bool("mlp_bias", false);
  if (const auto scheme = json.Object("quantization")) {
    spec.quantization = SchemeFromJson(*scheme);
  }
  spec.bos_ids = ToIds(json.Ints("bos_ids"));
  spec.eos_ids = ToIds(json.Ints("eos_ids"));
  TANDEM_RETURN_IF_ERROR(json.status());
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  return spec;
}

}  // namespace tandem
