// CudaSampler: draws and the ratio rule on the GPU.
#pragma once
#include "ops/cuda/context.cuh"
#include "ops/ops.h"
namespace tandem::ops::cuda {
class CudaSampler {
 public:
  explicit CudaSampler(const Context& context) : context_(context) {}
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out);
 private:
  const Context context_;
};
}  // namespace tandem::ops::cuda
