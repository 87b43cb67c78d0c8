// Reductions over the threads of a block, a whole number of warps. Every thread gets the result; a
// block calls each once at most, because it does not wait before it reuses the memory.
#pragma once

#include <cstdint>

namespace tandem::ops::cuda {

constexpr int kMaxBlockWarps = 32;

// The order depends only on the number of threads.
__device__ inline float BlockSum(float value) {
  __shared__ float of_warp[kMaxBlockWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0U, value, distance);
  }
  if (lane == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < static_cast<int>(blockDim.x) / 32 ? of_warp[lane] : 0.0f;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0U, value, distance);
  }
  return value;
}

// The largest of numbers that are not negative. NaN is ignored.
__device__ inline float BlockMax(float value) {
  __shared__ uint32_t of_warp[kMaxBlockWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // The bits of such numbers are in their order; fmaxf turns a NaN into 0.
  const uint32_t bits = __reduce_max_sync(~0U, __float_as_uint(fmaxf(value, 0.0f)));
  if (lane == 0) of_warp[threadIdx.x / 32] = bits;
  __syncthreads();
  const uint32_t mine = lane < static_cast<int>(blockDim.x) / 32 ? of_warp[lane] : 0;
  return __uint_as_float(__reduce_max_sync(~0U, mine));
}

}  // namespace tandem::ops::cuda
