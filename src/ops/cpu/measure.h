// What the machine can do at most, measured with the threads and kernels of a backend. Each takes
// about a second on an idle machine; call them from the thread that owns the pool.
#pragma once

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

// Bytes/s of the best of `passes` passes over `bytes` (more than any cache holds); 0 when so much
// memory cannot be had.
double MeasureReadBandwidth(const CpuKernels& kernels, ThreadPool& pool, int64_t bytes, int passes);

// Multiply-adds/s, as 2 operations each, on registers alone; best of several short runs.
double MeasureMatrixPeak(const CpuKernels& kernels, ThreadPool& pool, Element element);

}  // namespace tandem::ops::cpu
