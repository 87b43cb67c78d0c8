#include "model/tensor_source.h"

#include <array>

namespace tandem {

TensorSource StandardSource(const ModelSpec& /*spec*/, const WeightId& id) {
  constexpr std::array kSuffixes = {".weight", ".bias", ".weight_scale", ".input_scale"};
  const auto suffix = [&]() -> std::string {
    if (id.part == WeightPart::kCacheScale) {
      return id.role == WeightRole::kKey ? ".k_scale" : ".v_scale";
    }
    return kSuffixes[static_cast<size_t>(id.part)];
  };
  const WeightRow& row = RowOf(id.role);
  const std::string prefix =
      row.per_layer ? "model.layers." + std::to_string(id.layer) + "." : std::string();
  return {.name = prefix + std::string(row.hf_name) + suffix()};
}

}  // namespace tandem
