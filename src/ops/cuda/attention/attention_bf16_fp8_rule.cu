#include "ops/cuda/attention/attention_kernels.cuh"

namespace tandem::ops::cuda {

template void LaunchShortAttention<Bf16, Fp8, true>(const Context&, const AttentionParams&, int);
template void LaunchLongAttention<Bf16, Fp8, true>(const Context&, const AttentionParams&, int,
                                                   int);
template void LaunchGatheredAttention<Bf16, Fp8, true>(const Context&, const AttentionParams&, int,
                                                       int, int);
template int ShortBlocksPerSm<Bf16, Fp8, true>(const Context&, int, int);

}  // namespace tandem::ops::cuda
