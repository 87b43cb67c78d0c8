// Adds a layer's output to the residual and normalizes it. Needs no workspace. Functions for the
// decoder's thread.
#pragma once

#include "model/spec.h"
#include "model/weight_loader.h"
#include "ops/backend.h"

namespace tandem {

struct NormWeights {
  Buffer weight;  // [hidden]
};

Status LoadNorm(WeightLoader& loader, WeightRole role, int64_t layer, NormWeights& out);

// residual += delta (unless delta is empty); out = norm(residual). residual, delta, out: [rows,
// hidden].
void RunNorm(ops::Ops& ops, const NormSpec& spec, const NormWeights& weights,
             const Tensor& residual, const Tensor& delta, const Tensor& out);

}  // namespace tandem
