#include "ops/cuda/attention_kernels.cuh"

namespace tandem::ops::cuda {

template void LaunchShortAttention<Bf16, Bf16>(const AttentionParams&, int, cudaStream_t);
template void LaunchLongAttention<Bf16, Bf16>(const AttentionParams&, cudaStream_t);

}  // namespace tandem::ops::cuda
