#include "model/blocks/norm.h"

namespace tandem {

Status LoadNorm(WeightLoader& loader, WeightRole role, int64_t layer, NormWeights& out) {
  return loader.LoadPlain(role, layer, out.weight);
}

void RunNorm(ops::Ops& ops, const NormSpec& spec, const NormWeights& weights,
             const Tensor& residual, const Tensor& delta, const Tensor& out) {
  ops.AddRmsNorm(residual, delta, weights.weight.View(residual.dtype, {residual.dim(1)}),
                 static_cast<float>(spec.epsilon), out);
}

}  // namespace tandem
