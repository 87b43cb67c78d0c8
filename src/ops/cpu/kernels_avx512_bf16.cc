// The kernels compiled for AVX-512 with its bf16 dot product: two multiply-adds per lane, so bf16
// products take half the instructions. With VNNI, which all of these CPUs have. Everything else is
// as in plain AVX-512.
#include <immintrin.h>

#include "ops/cpu/inline.inc"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {
// clang-format off: each builds on the one before
#include "ops/cpu/simd_avx512.inc"
#include "ops/cpu/vector_math.inc"
#include "ops/cpu/tile.inc"
#include "ops/cpu/linear.inc"
#include "ops/cpu/group_sums.inc"
#include "ops/cpu/linear_groups.inc"
#include "ops/cpu/bf16_words_avx512.inc"
#include "ops/cpu/forward.inc"
// clang-format on

// Activations of a row block, [inputs / 2][MR] pairs of bf16.
template <int MR>
struct InterleavedPairs {
  const uint32_t* data;
  static TANDEM_INLINE InterleavedPairs Of(const void* packed, int64_t offset) {
    return {static_cast<const uint32_t*>(packed) + offset / 2};
  }
  TANDEM_INLINE __m512bh Get(int64_t pair, int row) const {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(data[pair * MR + row])));
  }
};

struct WeightsBf16Pairs {
  static constexpr int kInputs = 2;
  static constexpr int kStepBytes = 64;
  template <int MR>
  using Activations = InterleavedPairs<MR>;
  template <int MR, int NP, class A>
  static TANDEM_INLINE void Step(Vec (&acc)[MR][NP], const A& a, int64_t step, const char* w,
                                 int64_t panel_bytes) {
    __m512bh weights[NP];
    Unroll<NP>([&](auto p) TANDEM_INLINE_LAMBDA {
      weights[p.value] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w + p.value * panel_bytes));
    });
    Unroll<MR>([&](auto m) TANDEM_INLINE_LAMBDA {
      const __m512bh x = a.Get(step, m.value);
      Unroll<NP>([&](auto p) TANDEM_INLINE_LAMBDA {
        Vec& sum = acc[m.value][p.value];
        sum.v = _mm512_dpbf16_ps(sum.v, x, weights[p.value]);
      });
    });
  }
  // Never called: with 32 registers tiles need no widened weights.
  static void Expand(const char*, float*) {}
};

// clang-format off: each builds on the one before
#include "ops/cpu/round_inputs_avx512.inc"
#include "ops/cpu/unpack_avx512.inc"
#include "ops/cpu/linear_groups_avx512.inc"
// clang-format on

void PackPairs(const PackJob& job, int64_t block_begin, int64_t block_end) {
  const RowBlocks blocks(job.num_rows);
  const bool changed = job.factors != nullptr || job.order != nullptr;
  for (int64_t block = block_begin; block < block_end; ++block) {
    const int64_t rows = blocks.Rows(block);
    auto* out = static_cast<uint32_t*>(job.packed) + blocks.Begin(block) * job.padded_inputs / 2;
    const auto* x = static_cast<const uint16_t*>(job.x) + blocks.Begin(block) * job.x_stride;
    for (int64_t row = 0; row < rows; ++row, x += job.x_stride) {
      if (changed) {
        uint32_t pairs[8];
        for (int64_t i = 0; i < job.padded_inputs; i += 16) {
          StoreBf16(reinterpret_cast<uint16_t*>(pairs), LoadInputs<Element::kBF16>(job, x, i));
          for (int64_t j = 0; j < 8; ++j) out[(i / 2 + j) * rows + row] = pairs[j];
        }
        continue;
      }
      for (int64_t pair = 0; pair < job.padded_inputs / 2; ++pair) {
        const int64_t left = job.inputs - 2 * pair;
        const uint32_t first = left > 0 ? x[2 * pair] : 0;
        const uint32_t second = left > 1 ? x[2 * pair + 1] : 0;
        out[pair * rows + row] = second << 16 | first;
      }
    }
  }
}

void PackActivations(const PackJob& job, int64_t begin, int64_t end) {
  if (RoundsInputs(job.element, job.quant)) return PackRounded(job, begin, end);
  if (job.element == Element::kBF16) return PackPairs(job, begin, end);
  kAvx512Kernels.pack_activations(job, begin, end);
}

void LinearPanels(const LinearJob& job, int64_t begin, int64_t end, float* scratch) {
  if (job.quant.elements != Quantized::kNone &&
      (job.quant.round_inputs || job.element == Element::kBF16)) {
    return DotGroupPanels(job, begin, end, scratch);
  }
  if (job.element == Element::kBF16) {
    return LinearVector<WeightsBf16Pairs>(job, begin, end, scratch);
  }
  kAvx512Kernels.linear_panels(job, begin, end, scratch);
}

double DotBurst(int64_t steps) {
  constexpr int kSums = 24;
  __m512 sums[kSums];
  float values[kSums * 16];
  FillForBurst(values, kSums * 16);
  const auto x = reinterpret_cast<__m512bh>(_mm512_loadu_ps(values));
  const auto y = reinterpret_cast<__m512bh>(_mm512_loadu_ps(values + 16));
  Unroll<kSums>(
      [&](auto i) TANDEM_INLINE_LAMBDA { sums[i.value] = _mm512_loadu_ps(values + i.value * 16); });
  for (int64_t step = 0; step < steps; ++step) {
    Unroll<kSums>([&](auto i) TANDEM_INLINE_LAMBDA {
      sums[i.value] = _mm512_dpbf16_ps(sums[i.value], x, y);
    });
  }
  Unroll<kSums>(
      [&](auto i) TANDEM_INLINE_LAMBDA { _mm512_storeu_ps(values + i.value * 16, sums[i.value]); });
  asm volatile("" : : "r"(values) : "memory");
  return 2.0 * 2.0 * 16.0 * kSums * static_cast<double>(steps);
}

double MatrixBurst(Element element, int64_t steps) {
  return element == Element::kBF16 ? DotBurst(steps) : kAvx512Kernels.matrix_burst(element, steps);
}

// Other packings have the row blocks of AVX-512.
int64_t NumBlocks(const PackJob& job) {
  if (!RoundsInputs(job.element, job.quant)) return RowBlocks(job.num_rows).count;
  return WithRounding(job.quant, [&](auto rounding) {
    return RoundedRowBlocks<decltype(rounding)>(job.num_rows).count;
  });
}

constexpr CpuKernels DotKernels() {
  CpuKernels kernels = ForwardToAvx512("avx512_bf16");
  kernels.num_linear_blocks = NumBlocks;
  kernels.pack_activations = PackActivations;
  kernels.linear_panels = LinearPanels;
  kernels.matrix_burst = MatrixBurst;
  kernels.rounds_inputs = true;
  return kernels;
}

}  // namespace

constinit const CpuKernels kAvx512Bf16Kernels = DotKernels();

}  // namespace tandem::ops::cpu
