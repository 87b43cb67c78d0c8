// The kernels compiled for AVX-512 F, BW, DQ and VL.
#include "ops/cpu/kernels.h"

#include <immintrin.h>

#include "ops/cpu/inline.inc"

namespace tandem::ops::cpu {
namespace {
// clang-format off: each builds on the one before
#include "ops/cpu/simd_avx512.inc"
#include "ops/cpu/vector_math.inc"
#include "ops/cpu/tile.inc"
#include "ops/cpu/linear.inc"
#include "ops/cpu/attention.inc"
#include "ops/cpu/rows.inc"
#include "ops/cpu/table.inc"
// clang-format on
}  // namespace

constinit const CpuKernels kAvx512Bf16Kernels = TANDEM_VECTOR_KERNELS("avx512_bf16");

}  // namespace tandem::ops::cpu
