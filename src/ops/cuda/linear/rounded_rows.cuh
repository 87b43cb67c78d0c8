// How a row of activations is rounded to fp8 or int8, for the kernels that make such rows.
#pragma once

#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/linear/quantize.cuh"

namespace tandem::ops::cuda {

// The scale of a row whose largest magnitude this is, and that of what it is rounded to.
__device__ inline float ScaleOf(float largest, float max) {
  return largest > 0.0f ? largest / max : 1.0f;
}

// What elements are rounded to. ScaleOfRow: from the row's largest magnitude, as LargestOf finds
// it, unless `fixed` is given. kNeedsLargest: also then. Pair: two elements, the first in the lower
// byte.
struct ToFp8 {
  static constexpr float kMax = kFp8Max;
  static constexpr bool kNeedsLargest = false;
  __device__ static float Magnitude(float value) { return fabsf(value); }
  __device__ static float ScaleOfRow(float largest, float fixed) {
    return fixed == 0.0f ? ScaleOf(largest, kMax) : fixed;
  }
  __device__ static uint8_t Round(float value) { return FromFloat<Fp8>(value); }
  __device__ static uint32_t Pair(float first, float second) {
    return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
  }
};
// Integers hold no NaN: a row with one, or with an infinity, gets the scale NaN.
struct ToInt8 {
  static constexpr float kMax = kInt8Max;
  static constexpr bool kNeedsLargest = true;
  __device__ static float Magnitude(float value) {
    return isnan(value) ? __int_as_float(0x7f800000) : fabsf(value);
  }
  __device__ static float ScaleOfRow(float largest, float fixed) {
    if (isinf(largest)) return __int_as_float(0x7fffffff);
    return fixed == 0.0f ? ScaleOf(largest, kMax) : fixed;
  }
  __device__ static uint8_t Round(float value) {
    return static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(value, -kMax), kMax)));
  }
  __device__ static uint32_t Pair(float first, float second) {
    return Round(first) | uint32_t{Round(second)} << 8;
  }
};

// The larger of `largest` and the magnitudes of a piece. A NaN is ignored where rounding keeps it.
template <typename To, typename T>
__device__ inline float LargestOf(const Pack<T, 8>& piece, float largest) {
#pragma unroll
  for (const T value : piece.at) largest = fmaxf(largest, To::Magnitude(ToFloat(value)));
  return largest;
}

// Eight elements times 1 / scale.
template <typename To, typename T>
__device__ inline uint2 RoundPiece(const Pack<T, 8>& piece, float inverse) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = To::Pair(ToFloat(piece.at[2 * i]) * inverse, ToFloat(piece.at[2 * i + 1]) * inverse);
  }
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

}  // namespace tandem::ops::cuda
