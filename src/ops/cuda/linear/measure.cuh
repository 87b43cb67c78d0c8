// The GPU's measured ceilings, which the benchmarks compare results with.
#pragma once
#include "ops/cuda/device/context.cuh"
#include "tensor/dtype.h"
namespace tandem::ops::cuda {
// Bytes per second of a read stream over all multiprocessors. Takes some tens of milliseconds.
double MeasureReadBandwidth(const Context& context);
// Operations per second of a large matrix product in `dtype` (bf16, fp16, fp8).
double MeasureMatrixPeak(const Context& context, DType dtype);
// Enqueues a read of the whole memory, which displaces other data from the caches it fills. May
// write the last 16 bytes.
void EnqueueRead(const Context& context, void* data, size_t bytes);
}  // namespace tandem::ops::cuda
