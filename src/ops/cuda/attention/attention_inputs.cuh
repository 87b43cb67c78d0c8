// What the attention kernels read of a sequence or head before and after their loops over keys.
#pragma once

#include <type_traits>

#include "ops/cuda/attention/attention_params.cuh"
#include "ops/cuda/device/elements.cuh"

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
constexpr float kLog2E = 1.44269504f;

// The rule of a layer's scores, with what its keys are multiplied by.
class ScoreRule {
 public:
  __device__ ScoreRule(const AttentionParams& params, float key_scale)
      : scale_(params.scale * key_scale),
        soft_cap_(params.soft_cap),
        per_cap_(soft_cap_ == 0.0f ? 0.0f : 1.0f / soft_cap_) {}

  __device__ float scale() const { return scale_; }
  // The score of a key that is `later` positions after the row, as the softmax takes it: a power of
  // 2. Keys from `earliest` on are seen.
  __device__ float Apply(float score, int later, int earliest, float slope) const {
    score *= scale_;
    if (soft_cap_ != 0.0f) {
      // tanh to 1e-7.
      const float power = exp2f(score * per_cap_ * (2.0f * kLog2E));
      score = soft_cap_ * (1.0f - __fdividef(2.0f, power + 1.0f));
    }
    score = __fmaf_rn(slope, static_cast<float>(later), score);
    return later < earliest ? -INFINITY : score * kLog2E;
  }

 private:
  const float scale_;
  const float soft_cap_;  // 0: none
  const float per_cap_;
};

// The sum of a row's weights, relative to its largest score, with its head's sink. Of a Kind
// without a rule there are no sinks.
__device__ inline float SumWithSink(const AttentionParams& params, int head, float max, float sum) {
  if (params.sinks == nullptr) return sum;
  return sum + exp2f(__fmaf_rn(params.sinks[head], kLog2E, -max));
}

}  // namespace tandem::ops::cuda
