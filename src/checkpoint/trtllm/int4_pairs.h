// How two elements of int4 share a byte in a rank of a checkpoint: those of rows 2r and 2r + 1,
// signed, in a tensor [rows / 2, columns]. In memory they are neighbours of a row, from 0. Pure
// functions.
#pragma once

#include <cstdint>

#include "checkpoint/trtllm/fused_tensors.h"
#include "tensor/tensor.h"

namespace tandem {

// Whether the tensor holds int4 elements.
bool HoldsInt4(const ModelSpec& spec, const FusedTensor& tensor);
// memory [rows, columns / 2] to file [rows / 2, columns].
void PairRows(const Tensor& memory, const Tensor& file);
// The rows of `file` from `first` (even) on.
void UnpairRows(const Tensor& file, int64_t first, const Tensor& memory);

}  // namespace tandem
