// Norms. The one before a block or the head also adds the output of the block before to the
// residual, and is computed with the product that takes it (Ops::NormLinear). Functions for the
// decoder's thread.
#pragma once

#include "model/spec.h"
#include "model/weight_loader.h"
#include "ops/backend.h"

namespace tandem {

struct NormWeights {
  Buffer weight;  // [hidden], or of queries or keys as AttentionSpec::head_norm says
  Buffer bias;    // as the weight; empty without
};

Status LoadNorm(WeightLoader& loader, WeightRole role, int64_t layer, NormWeights& out);

// What the next product takes: residual += delta (unless delta is empty), then norm(residual).
// residual, delta, scratch: [rows, hidden].
ops::NormedRows Normed(const NormSpec& spec, const NormWeights& weights, const Tensor& residual,
                       const Tensor& delta, const Tensor& scratch);
// rows = norm(rows), [rows, hidden].
void NormInPlace(ops::Ops& ops, const NormSpec& spec, const NormWeights& weights,
                 const Tensor& rows);
// The norm as ops take it; `dtype` is that of activations.
ops::Norm NormOf(const NormSpec& spec, const NormWeights& weights, DType dtype);

}  // namespace tandem
