#include "ops/cuda/attention/attention_kernels.cuh"

namespace tandem::ops::cuda {

template void LaunchShortAttention<Bf16, Bf16, false>(const Context&, const AttentionParams&, int);
template void LaunchLongAttention<Bf16, Bf16, false>(const Context&, const AttentionParams&, int,
                                                     int);
template void LaunchGatheredAttention<Bf16, Bf16, false>(const Context&, const AttentionParams&,
                                                         int, int, int);
template int ShortBlocksPerSm<Bf16, Bf16, false>(const Context&, int, int);
template bool HasInvariantTiles<Bf16, Bf16>(const Context&, int);

}  // namespace tandem::ops::cuda
