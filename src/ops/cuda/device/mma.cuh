// The matrix instruction of one warp, mma.m16n8k16, with sums in fp32; that of a warpgroup is in
// wgmma.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device/elements.cuh"

namespace tandem::ops::cuda {

// sums += a b. T: Bf16 or Fp16. Not volatile: the compiler may move it as it moves other
// arithmetic.
template <typename T>
__device__ inline void MultiplyAdd(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                   uint32_t a3, uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>);
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
template <typename T>
__device__ inline void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  MultiplyAdd<T>(sums, a[0], a[1], a[2], a[3], b0, b1);
}

}  // namespace tandem::ops::cuda
