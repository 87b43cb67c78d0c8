// AttentionRunner: causal attention over the paged keys and values on the GPU.
#pragma once
#include "ops/cuda/context.cuh"
#include "ops/ops.h"
namespace tandem::ops::cuda {
class AttentionRunner {
 public:
  explicit AttentionRunner(const Context& context) : context_(context) {}
  void Run(const Tensor& qkv, const BatchView& batch, const KvPool& pool, int32_t layer, float scale, const Tensor& out);
 private:
  const Context context_;
};
}  // namespace tandem::ops::cuda
