#include "model/rope_config.h"

#include <string>

namespace tandem {

RopeScaling ReadRopeScaling(const JsonFields& rope, int64_t max_positions,
                            int64_t original_positions) {
  RopeScaling scaling;
  const char* key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.Text(key, "default");
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (type == "dynamic") {
    scaling.kind = RopeScaling::Kind::kDynamic;
    scaling.original_max_positions = max_positions;
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.low_freq_factor = rope.Number("low_freq_factor");
    scaling.high_freq_factor = rope.Number("high_freq_factor");
    scaling.original_max_positions =
        rope.Int("original_max_position_embeddings", original_positions);
  } else {
    rope.Fail(
        key, rope.Shown(key) + " is not supported; supported are default, linear, dynamic, llama3");
    return scaling;
  }
  scaling.factor = rope.Number("factor");
  return scaling;
}

}  // namespace tandem
