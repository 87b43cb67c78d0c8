// How weights are fused in TensorRT-LLM's layout, which our checkpoints and engines share: names,
// shapes and each rank's slices. Pure values and functions. The table is in
// docs/formats/checkpoint.md.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/stored/as_dtype.h"
#include "model/sharding.h"
#include "model/weight_source.h"

namespace tandem {

// One tensor of a rank's file: the weights (biases, scales) of its roles one below the other; what
// belongs to their inputs only once, because the roles share them: of input scales the largest.
struct FusedTensor {
  // "transformer.layers.0.attention.qkv.weight"; each stage counts its layers from 0.
  std::string name;
  std::vector<WeightRole> roles;
  int64_t layer = 0;
  WeightPart part = WeightPart::kWeight;
  int64_t stage = 0;
  int64_t expert = 0;

  WeightId IdOf(WeightRole role) const { return {role, layer, part, expert}; }
  WeightPartRow::Extent extent() const { return RowOf(part).extent; }
  // The roles have it in common.
  bool is_shared() const {
    return extent() == WeightPartRow::Extent::kOne || extent() == WeightPartRow::Extent::kColumns;
  }
};

// All tensors of a rank over the stages, in the order they are written. A tied head is not stored.
std::vector<FusedTensor> FusedTensors(const ModelSpec& spec, const Sharding& sharding = {});
// The fused tensor that holds a weight.
FusedTensor FusedTensorOf(const ModelSpec& spec, const WeightId& id, const Sharding& sharding = {});

// UNIMPLEMENTED unless the tensor's weights have elements and scales of one kind.
Status CheckFusedSchemes(const ModelSpec& spec, const FusedTensor& tensor);

Shape FusedShape(const ModelSpec& spec, const Sharding& sharding, const FusedTensor& tensor);
DType FusedDType(const ModelSpec& spec, const FusedTensor& tensor);

// The rank's part of a tensor, from a source of whole weights; lives as long as source and scratch.
Result<Tensor> MakeShard(WeightSource& source, const Sharding& sharding, const FusedTensor& tensor,
                         int64_t rank, ScratchBuffers& scratch);

}  // namespace tandem
