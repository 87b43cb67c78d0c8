// What the CUDA ops share: the device, its stream, and what becomes of a failed call. Seen by
// ops/cuda alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"

namespace tandem {
class Status;
}

namespace tandem::ops::cuda {

struct Context {
  int device = 0;
  int num_sms = 0;
  size_t l2_bytes = 0;
  // 10 * major + minor of what may be used: the device's own or less (CudaOptions).
  int compute_capability = 0;
  int shared_bytes = 0;  // that a block may have, likewise
  bool batch_invariant = false;
  cudaStream_t stream = nullptr;
};

// Ops enqueue and return nothing. So the first failure (a lost GPU, a kernel that read where it
// must not, memory that was refused) is kept, and the next Backend::WaitFor or Synchronize reports
// it. What is enqueued until then fails as well, or computes what nobody reads. Any thread; the
// record is the process's, as the CUDA runtime's own errors are.
void KeepFailure(const Status& failure);
// RESOURCE_EXHAUSTED where memory was refused, else UNAVAILABLE. An argument or a launch that can
// never be right ends the program, unless it follows from an earlier failure.
void KeepFailure(cudaError_t error, const char* what);
// The first failure kept since the last call; ok when there was none.
Status TakeFailure();

inline void CheckCuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) [[unlikely]]
    KeepFailure(error, what);
}
// After every launch: a refused one is known at once, a kernel that fails when it has run.
inline void CheckLaunch(const char* kernel) { CheckCuda(cudaGetLastError(), kernel); }

// Device memory for an op's scratch, to be given to cudaFree; null, and the failure kept, where it
// is refused.
void* AllocateWorkspace(size_t bytes, const char* what);

constexpr int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace tandem::ops::cuda
