// The machine's limits, measured with the threads and kernels of a backend. Each function takes
// about a second on an idle machine; call it from the thread that owns the pool.
#pragma once

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

// Bytes per second of the best of `passes` passes over `bytes` (more than any cache holds); 0 if
// that much memory is not available.
double MeasureReadBandwidth(const CpuKernels& kernels, ThreadPool& pool, int64_t bytes, int passes);

// Multiply-adds per second, counted as 2 operations, on registers only; best of several short runs.
double MeasureMatrixPeak(const CpuKernels& kernels, ThreadPool& pool, Element element);

}  // namespace tandem::ops::cpu
