// How two elements of int4 share a byte in a file of a rank. Pure functions.
#pragma once

#include <cstdint>

#include "checkpoint/trtllm/fused_tensors.h"
#include "tensor/tensor.h"

namespace tandem {

enum class Int4Pairs : uint8_t {
  kOfARow,     // as in memory: two neighbours of a row, from 0 to 15
  kOfTwoRows,  // as in checkpoints: rows 2r and 2r + 1, signed, of a tensor [rows / 2, columns]
};

// Whether the tensor holds int4 elements.
bool HoldsInt4(const ModelSpec& spec, const FusedTensor& tensor);
// The shape in a file.
Shape PairedShape(const ModelSpec& spec, const Sharding& sharding, const FusedTensor& tensor,
                  Int4Pairs pairs);

// memory [rows, columns / 2] to file [rows / 2, columns].
void PairRows(const Tensor& memory, const Tensor& file);
// The rows of `file` from `first` (even) on.
void UnpairRows(const Tensor& file, int64_t first, const Tensor& memory);

}  // namespace tandem
