// Launches whose start overlaps the end of the kernel before (programmatic dependent launch): in a
// step of many short kernels the starts would else add up to more than some of the work.
//
// Every kernel launched so calls BeginKernel first, on every path. It returns when the kernel
// before has finished, which had called BeginKernel too or was launched plainly: so all that was
// enqueued before is done and visible. Only what no kernel writes, such as weights, may be read
// ahead of it. What that kernel wrote must not be read through the read-only cache (no __restrict__
// const).
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/context.cuh"

namespace tandem::ops::cuda {

__device__ inline void BeginKernel() {
#if __CUDA_ARCH__ >= 900
  // The kernel behind may be set up as soon as all blocks of this one have come so far.
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename Kernel, typename... Args>
void LaunchEarly(const char* what, Kernel kernel, dim3 grid, int64_t threads, int shared_bytes,
                 cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, args...), what);
}

}  // namespace tandem::ops::cuda
