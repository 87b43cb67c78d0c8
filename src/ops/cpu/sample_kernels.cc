#define TANDEM_SAMPLE_KERNELS kSampleKernelsBaseline
#include "ops/cpu/sample_kernels.inc"

namespace tandem::ops {

const SampleKernels& KernelsForThisCpu() {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  return has_avx2 ? kSampleKernelsAvx2 : kSampleKernelsBaseline;
}

}  // namespace tandem::ops
