#include "model/blocks/mlp.h"

#include <algorithm>

namespace tandem {
namespace {

int64_t WidestIntermediate(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) { return layer.mlp.intermediate_size; });
}

}  // namespace

Status LoadMlp(WeightLoader& loader, int64_t layer, MlpWeights& out) {
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kGateUp, layer, out.gate_up));
  return loader.LoadPack(WeightPack::kDown, layer, out.down);
}

MlpBlock::MlpBlock(const ModelSpec& spec)
    : gate_up_(2 * WidestIntermediate(spec), spec.dtype),
      activated_(WidestIntermediate(spec), spec.dtype) {}

Status MlpBlock::Allocate(ops::Backend& backend, int64_t max_rows) {
  TANDEM_RETURN_IF_ERROR(gate_up_.Allocate(backend, max_rows));
  return activated_.Allocate(backend, max_rows);
}

void MlpBlock::Run(ops::Ops& ops, const MlpSpec& spec, const MlpWeights& weights,
                   const BlockInput& x, ops::NormedRows& next) const {
  const int64_t rows = next.delta.dim(0);
  const Tensor inner = gate_up_.View(rows, (spec.gated ? 2 : 1) * spec.intermediate_size);
  const Tensor activated = activated_.View(rows, spec.intermediate_size);
  if (const auto* normed = std::get_if<ops::NormedRows>(&x)) {
    ops.NormMlpAdd(*normed, weights.gate_up, spec.activation, weights.down, inner, activated, next);
  } else {
    ops.Mlp(std::get<Tensor>(x), weights.gate_up, spec.activation, weights.down, inner, activated,
            next.delta);
    next.squares = {};
  }
}

}  // namespace tandem
