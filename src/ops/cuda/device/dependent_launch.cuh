// Launches whose start overlaps the end of the previous kernel (programmatic dependent launch): in
// a step of many short kernels, starting them would otherwise take longer than part of the work.
// GPUs before sm_90 start each kernel after the end of the previous one: BeginKernel then does
// nothing.
//
// A kernel launched this way calls BeginKernel before it writes to the device's memory, and before
// it reads anything that a kernel writes. Weights, which no kernel writes, it may read before. The
// call returns when the previous kernel has ended. At least one block of every grid calls it on
// every path, so that the end of a grid means the end of all before it: all earlier work is
// complete and visible after the call. Data written by that kernel must not be read through the
// read-only cache (no __restrict__ const).
//
// Before the call even work older than the previous kernel may not be complete: short kernels begin
// one after another while the first of them still runs. There is one way to read such data early. A
// kernel calls BeginKernelLast instead, as its first statement and in all blocks. Then all that was
// enqueued before it is complete for whatever is enqueued after it, which may read that before its
// own call. (A grid begins on an SM with an empty L1 cache.)
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/device/context.cuh"

namespace tandem::ops::cuda {

__device__ inline void BeginKernel() {
#if __CUDA_ARCH__ >= 900
  // The next kernel may be set up as soon as all blocks of this one have reached this point.
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// As BeginKernel, but the next kernel is set up only when the previous one has finished.
__device__ inline void BeginKernelLast() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Lets a kernel take `bytes` of dynamic shared memory per block, and gives as much of each SM's
// memory as possible to shared memory, the rest to the L1 cache. Kernels run side by side only with
// the same division, and one that asks for none takes over the previous kernel's: so all that need
// much ask for this one.
template <typename Kernel>
void TakeSharedMemory(Kernel kernel, int bytes, const char* what) {
  const auto* const function = reinterpret_cast<const void*>(kernel);
  CheckCuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            what);
  CheckCuda(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            what);
}

// In clusters of `cluster` blocks along x; more than one from sm_90 on.
template <typename... Parameters, typename... Arguments>
void LaunchEarlyInClusters(const Context& context, const char* what, int cluster,
                           void (*kernel)(Parameters...), dim3 grid, int64_t threads,
                           int shared_bytes, const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = context.stream;
  config.attrs = attributes;
  config.numAttrs = context.compute_capability < 90 ? 0 : cluster == 1 ? 1 : 2;
  CheckCuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

template <typename... Parameters, typename... Arguments>
void LaunchEarly(const Context& context, const char* what, void (*kernel)(Parameters...), dim3 grid,
                 int64_t threads, int shared_bytes, const Arguments&... arguments) {
  LaunchEarlyInClusters(context, what, 1, kernel, grid, threads, shared_bytes, arguments...);
}

}  // namespace tandem::ops::cuda
