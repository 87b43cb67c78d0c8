// Products of up to 192 tokens of fp8 with weights of fp8, on sm_90: our own kernel, which divides
// the columns of the weights among blocks where the library does not.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ops/cuda/device/context.cuh"

namespace tandem::ops::cuda {

// out [tokens, rows] = x [tokens, cols] * weight [rows, cols] transposed, times the scales of both,
// plus the bias. cols: a multiple of 16; rows: of 4.
struct RoundedProduct {
  const void* x = nullptr;  // fp8, 16-byte aligned, as is the weight
  const float* token_scales = nullptr;
  const void* weight = nullptr;
  const float* row_scales = nullptr;
  const float* bias = nullptr;  // null: none
  void* out = nullptr;          // of `output`, aligned for four elements
  DType output = DType::kBF16;  // bf16, fp16 or fp32
  int tokens = 0;
  int rows = 0;
  int cols = 0;
};

class RoundedRunner {
 public:
  // Prepares the kernels on the context's device.
  explicit RoundedRunner(const Context& context);

  // Enqueues the product. Returns false and enqueues nothing for sizes with which the library was
  // faster or that were not measured, and on other devices. The bits depend on the sizes, on the
  // number of multiprocessors and on how many clusters of blocks the driver says run at once.
  bool Run(const RoundedProduct& product) const;

 private:
  // For blocks with this Layout.
  template <typename L>
  void Prepare();
  // As Run, with such blocks alone. takes(division): whether to use them.
  template <typename L, typename Takes>
  bool RunIf(const RoundedProduct& product, const Takes& takes) const;

  const Context context_;
  void* encode_ = nullptr;  // the driver's cuTensorMapEncodeTiled; null: not on this device
  // [n]: how many clusters of n blocks run at once, by weight rows and tokens of a block.
  std::map<std::pair<int, int>, std::vector<int>> resident_;
};

}  // namespace tandem::ops::cuda
