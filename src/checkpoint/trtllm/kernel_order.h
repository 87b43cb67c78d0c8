// The order in which TensorRT-LLM's converters leave integer weights for its kernels: a matrix is
// transposed and its columns are interleaved for one kind of GPU, without a word of which. Pure
// functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

// The bytes of a matrix of `rows` outputs and `columns` inputs, elements of 4 or 8 bits.
struct KernelMatrix {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int bits = 4;
};

// Whether there are kernels for such a matrix: 64 columns, and the rows that are interleaved, go
// together.
bool FitsKernels(const KernelMatrix& matrix);

// Rows `first` .. of the matrix as they are in memory (QuantScheme): `out` has their shape. GPUs
// before sm_90 have elements that begin at 0, interleaved, and sm_90 signed ones in order: as most
// weights are small, the more frequent bits tell which it is.
void FromKernelOrder(const KernelMatrix& matrix, int64_t first, const Tensor& out);

}  // namespace tandem
