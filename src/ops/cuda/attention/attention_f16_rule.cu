#include "ops/cuda/attention/attention_kernels.cuh"

namespace tandem::ops::cuda {

template void LaunchShortAttention<Fp16, Fp16, true>(const Context&, const AttentionParams&, int);
template void LaunchLongAttention<Fp16, Fp16, true>(const Context&, const AttentionParams&, int,
                                                    int);
template void LaunchGatheredAttention<Fp16, Fp16, true>(const Context&, const AttentionParams&, int,
                                                        int, int);
template int ShortBlocksPerSm<Fp16, Fp16, true>(const Context&, int, int);

}  // namespace tandem::ops::cuda
