#include "model/blocks/norm.h"

namespace tandem {

Status LoadNorm(WeightLoader& loader, WeightRole role, int64_t layer, NormWeights& out) {
  return loader.LoadPlain(role, layer, out.weight);
}

ops::NormedRows Normed(const NormSpec& spec, const NormWeights& weights, const Tensor& residual,
                       const Tensor& delta, const Tensor& scratch) {
  return {.residual = residual,
          .delta = delta,
          .weight = weights.weight.View(residual.dtype, {residual.dim(1)}),
          .epsilon = static_cast<float>(spec.epsilon),
          .rows = scratch};
}

}  // namespace tandem
