#include "model/weight_source.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace tandem {

Result<float> LargestInputScale(WeightSource& source, std::span<const WeightRole> roles,
                                int64_t layer) {
  float largest = 0.0f;
  for (const WeightRole role : roles) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor scale, source.Get({role, layer, WeightPart::kInputScale}));
    largest = std::max(largest, *scale.As<float>());
  }
  return largest;
}

Result<Tensor> CommonVector(WeightSource& source, std::span<const WeightRole> roles, int64_t layer,
                            WeightPart part) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor first, source.Get({roles.front(), layer, part}));
  const auto bytes = static_cast<size_t>(first.NumBytes());
  for (const WeightRole role : roles.subspan(1)) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor other, source.Get({role, layer, part}));
    if (std::memcmp(first.data, other.data, bytes) == 0) continue;
    return Unimplemented("layer " + std::to_string(layer) + ": " +
                         std::string(RowOf(roles.front()).hf_name) + " and " +
                         std::string(RowOf(role).hf_name) +
                         " are one product, but their inputs have different factors or orders");
  }
  return first;
}

}  // namespace tandem
