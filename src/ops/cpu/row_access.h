// Rows of matrices in host memory, and the product of packed rows by a weight. Inline functions for
// the CPU's ops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/kernels.h"
#include "ops/ops.h"

namespace tandem::ops::cpu {

inline int64_t RowBytes(const Tensor& tensor) {
  return tensor.dim(1) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

inline std::byte* RowOf(const Tensor& tensor, int64_t row) {
  return static_cast<std::byte*>(tensor.data) + row * RowBytes(tensor);
}

inline std::byte* At(const Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.data) +
         element * static_cast<int64_t>(SizeOf(tensor.dtype));
}

// All outputs of the packed rows; the caller sets the destination.
inline LinearJob ProductOf(const PackJob& pack, const LinearWeight& weight) {
  LinearJob job;
  job.element = pack.element;
  job.num_rows = pack.num_rows;
  job.inputs = pack.padded_inputs;
  job.outputs = weight.rows;
  job.activations = pack.packed;
  job.weights = weight.data.data();
  job.quant = pack.quant;
  job.scales = weight.scales.As<float>();
  job.bias = weight.bias.As<float>();
  return job;
}

}  // namespace tandem::ops::cpu
