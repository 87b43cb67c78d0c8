#include "model/rope_config.h"

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

}  // namespace tandem
