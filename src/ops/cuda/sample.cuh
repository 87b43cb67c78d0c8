// CudaSampler: draws and the ratio rule on the GPU.
#pragma once
#include "ops/cuda/context.cuh"
#include "ops/ops.h"
namespace tandem::ops::cuda {
class CudaSampler {
 public:
  explicit CudaSampler(const Context& context) : context_(context) {}
  void Reserve(int64_t max_rows, int64_t vocab);
  void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab);
  void Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out);
 private:
  const Context context_;
};
}  // namespace tandem::ops::cuda
