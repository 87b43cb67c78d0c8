#include "model/hf_config.h"

#include <string>

namespace tandem {
namespace {

// The factor of a kind that stretches the context.
void Stretch(const JsonFields& rope, ModelSpec& spec) {
  RopeScaling& scaling = spec.rope_scaling;
  scaling.original_max_positions = spec.max_positions;
  const double stretched = static_cast<double>(spec.max_positions) * scaling.factor;
  if (scaling.factor >= 1.0 && stretched <= static_cast<double>(kMaxPositions)) {
    spec.max_positions = static_cast<int64_t>(stretched);
    return;
  }
  rope.Fail("factor", rope.Shown("factor") + " does not stretch the context of " +
                          std::to_string(spec.max_positions) +
                          " positions to a sensible length; it must be at least 1");
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
    config.Fail(key, "\"" + name.substr(0, 40) + "\" is not float32, float16 or bfloat16");
    return DType::kF32;
  }
  return *dtype;
}

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

void ReadRopeScaling(const JsonFields& rope, int64_t original_positions, ModelSpec& spec) {
  RopeScaling& scaling = spec.rope_scaling = {};
  const char* key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(key, "default");
  if (type == "default") return;
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
    rope.Fail(
        key, rope.Shown(key) + " is not supported; supported are default, linear, dynamic, llama3");
    return;
  }
  scaling.factor = rope.Number("factor");
  if (scaling.kind != RopeScaling::Kind::kLlama3) Stretch(rope, spec);
}

std::vector<int32_t> ReadIds(const JsonFields& config, std::string_view key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const int64_t id : config.Ints(key)) {
    if (id >= 0 && id < vocab_size) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace tandem
