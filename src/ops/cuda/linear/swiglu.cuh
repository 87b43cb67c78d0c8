// The value of SwiGLU, for the kernel of that op and for products that apply it to their sums.
#pragma once

#include "ops/cuda/device/elements.cuh"

namespace tandem::ops::cuda {

// exp overflows to infinity for a large negative gate, which gives the zero it should. Its error,
// which grows with the gate (2^-18 at -20), and that of the division vanish in the rounding to 16
// bits.
__device__ inline float SwiGluOf(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

template <typename T, int kCount>
__device__ inline Pack<T, kCount> SwiGluOf(const Pack<T, kCount>& gate, const Pack<T, kCount>& up) {
  Pack<T, kCount> result;
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    result.at[e] = FromFloat<T>(SwiGluOf(ToFloat(gate.at[e]), ToFloat(up.at[e])));
  }
  return result;
}

}  // namespace tandem::ops::cuda
