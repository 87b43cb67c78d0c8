// Shared by the CUDA ops: the device, its stream, and the handling of failed calls. Used only in
// ops/cuda and comm/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"

namespace tandem {
class Status;
}
namespace tandem::ops {
class Backend;
}

namespace tandem::ops::cuda {

struct Context {
  int device = 0;
  int num_sms = 0;
  size_t l2_bytes = 0;
  // 10 * major + minor to use: the device's own or less (CudaOptions)
  int compute_capability = 0;
  int shared_bytes = 0;  // per block, likewise
  bool batch_invariant = false;
  cudaStream_t stream = nullptr;
};

// Of a backend made by MakeCudaBackend; null of any other. Valid as long as the backend.
const Context* ContextOf(const Backend& backend);

// Threads that a multiprocessor holds: of the architecture that is compiled for.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
constexpr int kThreadsPerSm = 1536;
#else
constexpr int kThreadsPerSm = 2048;
#endif

// Whether this build's kernels for warpgroups (wgmma.cuh) run on the device.
inline bool HasWarpgroups([[maybe_unused]] const Context& context) {
#ifdef TANDEM_CUDA_SM_90A
  return context.compute_capability == 90;
#else
  return false;
#endif
}

// Ops enqueue and return nothing. So the first failure (a lost GPU, an invalid read in a kernel,
// refused memory) is kept, and the next Backend::WaitFor or Synchronize reports it. Work enqueued
// until then fails as well, or its results are never used. Any thread; the record belongs to the
// process, as the CUDA runtime's own errors do.
void KeepFailure(const Status& failure);
// RESOURCE_EXHAUSTED if memory was refused, else UNAVAILABLE. An argument or a launch that can
// never be valid ends the program, unless it follows from an earlier failure.
void KeepFailure(cudaError_t error, const char* what);
// The first failure kept since the last call; ok when there was none.
Status TakeFailure();

inline void CheckCuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) [[unlikely]]
    KeepFailure(error, what);
}
// Call after every launch: a refused launch is known at once, a kernel that fails only after it
// ran.
inline void CheckLaunch(const char* kernel) { CheckCuda(cudaGetLastError(), kernel); }

// Whether what is enqueued now is recorded into a graph, not run.
inline bool IsRecorded(const Context& context) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CheckCuda(cudaStreamIsCapturing(context.stream, &capture), "a stream");
  return capture != cudaStreamCaptureStatusNone;
}

// The function of the driver's interface as of CUDA 12.0; if the driver has none, null, with a
// warning.
void* DriverFunction(const char* name);

// Device memory for an op's scratch, to be freed with cudaFree; if it is refused, null, and the
// failure is kept.
void* AllocateWorkspace(size_t bytes, const char* what);

constexpr int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace tandem::ops::cuda
