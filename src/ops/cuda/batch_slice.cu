#include "ops/batch_slice.h"
#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    SliceKernel(const __grid_constant__ BatchView batch, const __grid_constant__ BatchSlice slice) {
  BeginKernel();
  const auto seq = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (seq <= batch.num_seqs) FillSlice(batch, slice, seq);
}

}  // namespace

void CudaOps::LaySlice(const BatchView& batch, const BatchSlice& slice) {
  const auto blocks = static_cast<unsigned>(CeilDiv(batch.num_seqs + 1, kThreads));
  LaunchEarly(context_, "LaySlice", SliceKernel, dim3(blocks), kThreads, 0, batch, slice);
}

}  // namespace tandem::ops::cuda
