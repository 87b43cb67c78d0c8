#include "ops/cuda/attention_kernels.cuh"

namespace tandem::ops::cuda {

template void LaunchShortAttention<Fp16, Fp8>(const AttentionParams&, int, cudaStream_t);
template void LaunchLongAttention<Fp16, Fp8>(const AttentionParams&, cudaStream_t);

}  // namespace tandem::ops::cuda
