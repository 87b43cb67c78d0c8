// The kernels compiled for AVX2, FMA and F16C.
#include <immintrin.h>

#include "ops/cpu/inline.inc"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {
// clang-format off: each builds on the one before
#include "ops/cpu/simd_avx2.inc"
#include "ops/cpu/vector_math.inc"
#include "ops/cpu/tile.inc"
#include "ops/cpu/linear.inc"
#include "ops/cpu/group_sums.inc"
#include "ops/cpu/linear_groups.inc"
#include "ops/cpu/linear_groups_f32.inc"
#include "ops/cpu/linear_vector.inc"
#include "ops/cpu/attention.inc"
#include "ops/cpu/rows.inc"
#include "ops/cpu/table.inc"
// clang-format on
}  // namespace

constinit const CpuKernels kAvx2Kernels = VectorKernels("avx2");

}  // namespace tandem::ops::cpu
