// How a row of activations is rounded to fp8, for the kernels that make such rows.
#pragma once

#include "ops/cuda/elements.cuh"
#include "ops/cuda/quantize.cuh"

namespace tandem::ops::cuda {

// The scale of a row whose largest magnitude this is.
__device__ inline float ScaleOf(float largest) { return largest > 0.0f ? largest / kFp8Max : 1.0f; }

// The larger of `largest` and the magnitudes of a piece. NaN is ignored here: rounding keeps it.
template <typename T>
__device__ inline float LargestOf(const Pack<T, 8>& piece, float largest) {
#pragma unroll
  for (const T value : piece.at) largest = fmaxf(largest, fabsf(ToFloat(value)));
  return largest;
}

// Eight elements times 1 / scale.
template <typename T>
__device__ inline uint2 RoundPiece(const Pack<T, 8>& piece, float inverse) {
  uint16_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two =
        make_float2(ToFloat(piece.at[2 * i]) * inverse, ToFloat(piece.at[2 * i + 1]) * inverse);
    pairs[i] = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
  }
  return make_uint2(pairs[0] | uint32_t{pairs[1]} << 16, pairs[2] | uint32_t{pairs[3]} << 16);
}

}  // namespace tandem::ops::cuda
