// The experts of a layer: a router chooses some of them for every row, and their outputs are summed
// with its weights. One block serves all layers of a decoder: it owns their workspace, a layer
// brings its spec and weights. Used by the decoder's thread.
#pragma once

#include "model/blocks/mlp.h"
#include "model/blocks/row_buffer.h"
#include "model/spec.h"
#include "model/weight_loader.h"
#include "ops/backend.h"

namespace tandem {

struct MoeWeights {
  ops::LinearWeight router;  // [num_experts, hidden]
  Buffer correction;         // [num_experts] fp32; empty without
  ops::ExpertWeights experts;
  ops::LinearWeight shared_gate;  // [1, hidden]; without rows if there is none
};

Status LoadMoe(WeightLoader& loader, int64_t layer, MoeWeights& out);

class MoeBlock {
 public:
  explicit MoeBlock(const ModelSpec& spec);

  int64_t RowBytes() const;
  Status Allocate(ops::Backend& backend, int64_t max_rows);
  // next.delta = what the experts, and the MLP beside them if the layer has one, add to the
  // residual, [rows, hidden]; next.squares becomes empty. x: [rows, hidden], other memory.
  void Run(ops::Ops& ops, const LayerSpec& layer, const MoeWeights& weights, const MlpBlock& mlp,
           const MlpWeights& mlp_weights, const Tensor& x, ops::NormedRows& next) const;

 private:
  // As wide as the widest layer needs; a row has a slot for each expert that it chooses.
  RowBuffer scores_;       // [rows, num_experts] fp32
  RowBuffer experts_;      // [rows, slots] int32
  RowBuffer weights_;      // [rows, slots] fp32
  RowBuffer order_;        // [rows, 2 * slots] int32
  RowBuffer inner_;        // [rows, slots * 2 * intermediate]
  RowBuffer activated_;    // [rows, slots * intermediate]
  RowBuffer outputs_;      // [rows, slots * hidden]
  RowBuffer shared_;       // [rows, hidden] of the MLP beside the experts
  RowBuffer shared_gate_;  // [rows, 1] fp32
};

}  // namespace tandem
