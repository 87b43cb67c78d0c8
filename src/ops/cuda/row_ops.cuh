// Forms of Activate that the kernels of a Llama's layers do not compute. The ops choose; enqueued
// on the context's stream.
#pragma once

#include "ops/cuda/device/context.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// limit: of kClampedSwiglu.
void ActivateRows(const Context& context, Activation activation, float limit, const Tensor& in,
                  const Tensor& out);

}  // namespace tandem::ops::cuda
