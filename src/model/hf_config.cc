#include "model/hf_config.h"

#include <fmt/core.h>

#include <string>

namespace tandem {
namespace {

// The context after linear or dynamic scaling has stretched it.
int64_t Stretched(const JsonFields& rope, double factor, int64_t max_positions) {
  const double stretched = static_cast<double>(max_positions) * factor;
  if (factor >= 1.0 && stretched <= static_cast<double>(kMaxPositions)) {
    return static_cast<int64_t>(stretched);
  }
  rope.Fail("factor", rope.Shown("factor") + " does not stretch the context of " +
                          std::to_string(max_positions) +
                          " positions to a sensible length; it must be at least 1");
  return max_positions;
}

}  // namespace

void Refuse(const JsonFields& config, std::string_view key, std::string_view why) {
  config.Fail(key, config.Shown(key) + " is not supported" + std::string(why));
}

DType ReadDType(const JsonFields& config) {
  const char* key = config.Has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = config.Text(key, "float32");
  const auto dtype = ParseDType(name);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)) {
    config.Fail(key, fmt::format("\"{}\" is not float32, float16 or bfloat16", name.substr(0, 40)));
    return DType::kF32;
  }
  return *dtype;
}

RopeSpec ReadRope(const JsonFields& config, int64_t& max_positions) {
  RopeSpec spec;
  spec.theta = config.Number("rope_theta", spec.theta);
  const auto rope = config.Has("rope_parameters") ? config.Object("rope_parameters")
                                                  : config.Object("rope_scaling");
  if (!rope) return spec;
  for (const char* per_layer : {"full_attention", "sliding_attention"}) {
    if (rope->Has(per_layer)) rope->Fail(per_layer, "parameters by layer type are not supported");
  }
  if (rope->Number("partial_rotary_factor", 1.0) != 1.0) {
    Refuse(*rope, "partial_rotary_factor", "; every dimension of a head is rotated");
  }
  spec.theta = rope->Number("rope_theta", spec.theta);
  spec.scaling = ReadRopeScaling(
      *rope, config.Int("original_max_position_embeddings", max_positions), max_positions);
  return spec;
}

RopeScaling ReadRopeScaling(const JsonFields& rope, int64_t original_positions,
                            int64_t& max_positions) {
  RopeScaling scaling;
  const char* key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(key, "default");
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (type == "dynamic") {
    scaling.kind = RopeScaling::Kind::kDynamic;
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.low_freq_factor = rope.Number("low_freq_factor");
    scaling.high_freq_factor = rope.Number("high_freq_factor");
    scaling.original_max_positions =
        rope.Int("original_max_position_embeddings", original_positions);
  } else {
    Refuse(rope, key, "; supported are default, linear, dynamic, llama3");
    return scaling;
  }
  scaling.factor = rope.Number("factor");
  if (scaling.kind == RopeScaling::Kind::kLlama3) return scaling;
  scaling.original_max_positions = max_positions;
  max_positions = Stretched(rope, scaling.factor, max_positions);
  return scaling;
}

std::vector<LayerSpec> RepeatLayer(const JsonFields& config, std::string_view key,
                                   const LayerSpec& layer) {
  const int64_t count = config.Int(key);
  if (count >= 1 && count <= kMaxLayers) {
    return std::vector<LayerSpec>(static_cast<size_t>(count), layer);
  }
  config.Fail(
      key, config.Shown(key) + " layers; it must be between 1 and " + std::to_string(kMaxLayers));
  return {};
}

std::vector<int32_t> ReadIds(const JsonFields& config, std::string_view key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const int64_t id : config.Ints(key)) {
    if (id >= 0 && id < vocab_size) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace tandem
