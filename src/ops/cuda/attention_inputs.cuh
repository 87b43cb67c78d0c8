// What the attention kernels read of a sequence or head before and after their loops over keys.
#pragma once

#include <type_traits>

#include "ops/cuda/attention_params.cuh"
#include "ops/cuda/elements.cuh"

namespace tandem::ops::cuda {

// The keys that every row of a sequence sees, also those after its position.
__device__ inline int PrefixLen(const AttentionParams& params, int seq, int context) {
  return params.prefix_len == nullptr ? 0 : min(params.prefix_len[seq], context);
}

// What keys and values are multiplied with: weights, which may be read before BeginKernel. Only
// pools in fp8 have scales.
template <typename Stored>
__device__ inline float KeyScale(const AttentionParams& params, int kv_head) {
  if constexpr (std::is_same_v<Stored, Fp8>) {
    if (params.key_scales != nullptr) return params.key_scales[kv_head];
  }
  return 1.0f;
}
template <typename Stored>
__device__ inline float ValueScale(const AttentionParams& params, int kv_head) {
  if constexpr (std::is_same_v<Stored, Fp8>) {
    if (params.value_scales != nullptr) return params.value_scales[kv_head];
  }
  return 1.0f;
}
// What scores are multiplied with.
template <typename Stored>
__device__ inline float ScoreScale(const AttentionParams& params, int kv_head) {
  return params.scale * KeyScale<Stored>(params, kv_head);
}

}  // namespace tandem::ops::cuda
