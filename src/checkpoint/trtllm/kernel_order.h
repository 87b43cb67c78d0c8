// The order in which TensorRT-LLM's converters leave integer weights for its kernels: a matrix is
// transposed and its columns are interleaved for one kind of GPU, without a word of which. Pure
// functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

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

enum class KernelOrder : uint8_t {
  kInterleaved,  // GPUs before sm_90: elements that begin at 0, columns and rows interleaved
  kSigned,       // sm_90: signed elements in order
};

// How many elements have bits in each eighth of the unsigned range. Pooled over the matrices of a
// checkpoint, which all have one order.
using BitCounts = std::array<int64_t, 8>;
// Adds those of the matrix; of a large one, of a sample.
void CountBits(const KernelMatrix& matrix, BitCounts& counts);
// As most weights are small, the right reading has one peak, at zero. None where neither reading,
// or both, would.
std::optional<KernelOrder> KernelOrderOf(const BitCounts& counts);

// Rows `first` .. of the matrix as they are in memory (QuantScheme): `out` has their shape.
void FromKernelOrder(const KernelMatrix& matrix, KernelOrder order, int64_t first,
                     const Tensor& out);

}  // namespace tandem
