// Elements of activations and pools on the device: to and from fp32, and eight at a time. Values
// only; any thread.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace tandem::ops::cuda {

using Bf16 = __nv_bfloat16;
using Fp16 = __half;
using Fp8 = __nv_fp8_storage_t;  // e4m3

__device__ inline float ToFloat(Bf16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(Fp16 value) { return __half2float(value); }
__device__ inline float ToFloat(Fp8 value) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(value, __NV_E4M3)));
}

template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline Bf16 FromFloat<Bf16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline Fp16 FromFloat<Fp16>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
// Beyond the largest fp8 (448) there is no infinity to round to: it saturates.
template <>
__device__ inline Fp8 FromFloat<Fp8>(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

// kCount neighbouring elements as one piece of memory; aligned to its size, so that it is one load.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

template <typename T, int kCount>
__device__ inline Pack<T, kCount> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <typename T, int kCount>
__device__ inline void StorePack(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// Four values as neighbouring elements.
template <typename T>
__device__ inline void StoreFour(T* to, const float4& values) {
  StorePack<T, 4>(to, {FromFloat<T>(values.x), FromFloat<T>(values.y), FromFloat<T>(values.z),
                       FromFloat<T>(values.w)});
}

// Whether rows of `cols` 16-bit elements can be read in pieces of 8.
template <typename... Data>
bool HasPieces(int64_t cols, const Data*... data) {
  return cols % 8 == 0 && ((reinterpret_cast<uintptr_t>(data) % 16 == 0) && ...);
}

// Calls run(T{}) with the element type of `dtype`.
template <typename Run>
void WithActivation(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kBF16:
      return run(Bf16{});
    case DType::kF16:
      return run(Fp16{});
    default:
      TANDEM_CHECK(false, "activations on the GPU are bf16 or fp16");
  }
}

}  // namespace tandem::ops::cuda
