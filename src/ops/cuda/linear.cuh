// LinearRunner: products of activations with packed weights on the GPU.
#pragma once
#include "ops/cuda/context.cuh"
#include "ops/ops.h"
namespace tandem::ops::cuda {
class LinearRunner {
 public:
  explicit LinearRunner(const Context& context) : context_(context) {}
  void Run(const Tensor& x, const LinearWeight& weight, const Tensor& out);
 private:
  const Context context_;
};
}  // namespace tandem::ops::cuda
