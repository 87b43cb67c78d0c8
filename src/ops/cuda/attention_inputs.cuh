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

// What scores are multiplied with, read once before the loop over keys; and the sums of weighted
// values, read after it. Only pools in fp8 have scales.
template <typename Stored>
__device__ inline float ScoreScale(const AttentionParams& params, int kv_head) {
  if constexpr (std::is_same_v<Stored, Fp8>) {
    if (params.key_scales != nullptr) return params.scale * params.key_scales[kv_head];
  }
  return params.scale;
}
template <typename Stored>
__device__ inline float ValueScale(const AttentionParams& params, int kv_head) {
  if constexpr (std::is_same_v<Stored, Fp8>) {
    if (params.value_scales != nullptr) return params.value_scales[kv_head];
  }
  return 1.0f;
}

}  // namespace tandem::ops::cuda
