#include "model/weight_source.h"

#include <algorithm>

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

}  // namespace tandem
