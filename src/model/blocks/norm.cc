#include "model/blocks/norm.h"

namespace tandem {
namespace {

// As a vector of its elements; empty if there are none.
Tensor ViewOf(const Buffer& buffer, DType dtype) {
  const auto elements = static_cast<int64_t>(buffer.bytes() / SizeOf(dtype));
  return elements == 0 ? Tensor{} : buffer.View(dtype, {elements});
}

}  // namespace

Status LoadNorm(WeightLoader& loader, WeightRole role, int64_t layer, NormWeights& out) {
  TANDEM_RETURN_IF_ERROR(loader.LoadPlain({role, layer}, out.weight));
  if (!HasBias(loader.spec(), role, layer)) return {};
  return loader.LoadPlain({role, layer, WeightPart::kBias}, out.bias);
}

ops::Norm NormOf(const NormSpec& spec, const NormWeights& weights, DType dtype) {
  return {.kind = spec.kind,
          .epsilon = static_cast<float>(spec.epsilon),
          .weight_offset = static_cast<float>(spec.weight_offset),
          .weight = ViewOf(weights.weight, dtype),
          .bias = ViewOf(weights.bias, dtype)};
}

ops::NormedRows Normed(const NormSpec& spec, const NormWeights& weights, const Tensor& residual,
                       const Tensor& delta, const Tensor& scratch) {
  return {.residual = residual,
          .delta = delta,
          .norm = NormOf(spec, weights, residual.dtype),
          .rows = scratch};
}

void NormInPlace(ops::Ops& ops, const NormSpec& spec, const NormWeights& weights,
                 const Tensor& rows) {
  ops.AddNorm(Normed(spec, weights, rows, {}, rows));
}

}  // namespace tandem
