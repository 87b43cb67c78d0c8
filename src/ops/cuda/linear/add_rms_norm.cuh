// AddNorm of the norms of a Llama's layers, which may round its rows to fp8 or int8 for the product
// that takes them.
#pragma once

#include "ops/cuda/device/context.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// Whether it is an RMS norm with a weight alone, which these kernels compute.
bool IsPlainNorm(const NormedRows& x);

// As Ops::AddNorm of a plain norm.
void AddRmsNorm(const Context& context, const NormedRows& x);

// The rows of x, a plain norm of a multiple of 8 columns, rounded with the bits of AddNorm and
// QuantizeActivations (quantize.cuh). x.rows stays as it was.
void QuantizeNorm(const Context& context, const NormedRows& x, DType to, float fixed_scale,
                  void* out, float* scales);

}  // namespace tandem::ops::cuda
