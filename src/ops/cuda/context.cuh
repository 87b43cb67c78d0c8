// What the CUDA ops share: the device, its stream, and how a launch is checked. Seen by ops/cuda
// alone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "base/check.h"

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

// A failed call of the runtime here is a defect of ours or a broken device, never bad input: the
// program ends and says where.
inline void CheckCuda(cudaError_t error, const char* what) {
  TANDEM_CHECK(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(error));
}
// Behind every launch: a wrong configuration is known at once, what a kernel does wrong at the next
// Synchronize.
inline void CheckLaunch(const char* kernel) { CheckCuda(cudaGetLastError(), kernel); }

constexpr int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace tandem::ops::cuda
