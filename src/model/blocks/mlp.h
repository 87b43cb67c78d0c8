// The MLP block: down(activation(gate(x)) * up(x)), or down(activation(up(x))). One block serves
// all layers of a decoder: it owns their workspace, a layer brings its spec and weights. Used by
// the decoder's thread.
#pragma once

#include "model/blocks/block_input.h"
#include "model/blocks/row_buffer.h"
#include "model/spec.h"
#include "model/weight_loader.h"
#include "ops/backend.h"

namespace tandem {

struct MlpWeights {
  ops::LinearWeight gate_up;  // [2 * intermediate, hidden]: gate rows, then up rows; or up alone
  ops::LinearWeight down;     // [hidden, intermediate]
};

Status LoadMlp(WeightLoader& loader, int64_t layer, MlpWeights& out);

class MlpBlock {
 public:
  explicit MlpBlock(const ModelSpec& spec);

  int64_t RowBytes() const { return gate_up_.RowBytes() + activated_.RowBytes(); }
  Status Allocate(ops::Backend& backend, int64_t max_rows);
  // next: the norm of the stream to which what the MLP adds goes, as Ops::LinearAdd; its delta may
  // be the input's.
  void Run(ops::Ops& ops, const MlpSpec& spec, const MlpWeights& weights, const BlockInput& x,
           ops::NormedRows& next) const;

 private:
  // As wide as the widest layer needs.
  RowBuffer gate_up_;    // [rows, 2 * intermediate]
  RowBuffer activated_;  // [rows, intermediate]
};

}  // namespace tandem
