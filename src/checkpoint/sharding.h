// How weights are fused and split over tensor-parallel ranks in TensorRT-LLM's layout, which our
// checkpoints and engines share: names, shapes and slices. Pure values and functions.
// docs/formats/checkpoint.md has the table.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/as_dtype.h"
#include "model/weights.h"

namespace tandem {

struct Sharding {
  int64_t tp_size = 1;
  bool parallel_embedding = false;  // the embedding is split too
  int64_t embedding_dim = 0;        // along the vocabulary (0) or the hidden size (1)
};

// The split must come out even: heads, intermediate size and (or replicated) key-value heads.
Status CheckSharding(const ModelSpec& spec, const Sharding& sharding);

// One tensor of a rank's file: the weights (biases, scales) of its roles one below the other; of
// input scales the largest, since the roles share their inputs.
struct FusedTensor {
  std::string name;  // "transformer.layers.0.attention.qkv.weight"
  std::vector<WeightRole> roles;
  int64_t layer = 0;
  WeightPart part = WeightPart::kWeight;
};

// All tensors of a rank, in the order they are written. A tied head is not stored.
std::vector<FusedTensor> FusedTensors(const ModelSpec& spec);
// The one that holds a weight.
FusedTensor FusedTensorOf(WeightRole role, int64_t layer, WeightPart part);

enum class Split { kNone, kRows, kCols };
Split SplitOf(const Sharding& sharding, WeightRole role, WeightPart part);

// Shape of a role's part on one rank.
Shape PartShape(const ModelSpec& spec, const Sharding& sharding, WeightRole role, WeightPart part);
// First row (or column) of a role's part on a rank, in the whole weight. Key-value heads fewer than
// ranks are repeated; the head's last rows may lie behind the vocabulary and are zero.
int64_t PartBegin(const ModelSpec& spec, const Sharding& sharding, WeightRole role, WeightPart part,
                  int64_t rank);

Shape FusedShape(const ModelSpec& spec, const Sharding& sharding, const FusedTensor& tensor);
DType FusedDType(const ModelSpec& spec, const FusedTensor& tensor);

// The rank's part of a tensor, from a source of whole weights; lives as long as source and scratch.
Result<Tensor> MakeShard(WeightSource& source, const Sharding& sharding, const FusedTensor& tensor,
                         int64_t rank, ScratchBuffers& scratch);

}  // namespace tandem
