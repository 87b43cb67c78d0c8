// Products of a few rows of fp8 with weights of fp8, on sm_90: our own kernel, which divides the
// columns of narrow weights among blocks where the library does not.
#pragma once

#include <cstdint>

#include "ops/cuda/context.cuh"

namespace tandem::ops::cuda {

// Up to this many rows a product is bound by reading its weights.
constexpr int64_t kMaxRoundedTokens = 64;

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
  // Takes shared memory for the kernels.
  explicit RoundedRunner(const Context& context);

  // Whether Run is faster than the library: for weights of so few rows that a block each would
  // leave multiprocessors without work.
  bool Takes(int64_t tokens, int64_t rows) const {
    return encode_ != nullptr && tokens <= kMaxRoundedTokens && rows <= 32 * context_.num_sms;
  }

  // Enqueues the product. Call only if Takes(product.tokens, product.rows). The bits depend on the
  // sizes alone.
  void Run(const RoundedProduct& product) const;

 private:
  const Context context_;
  void* encode_ = nullptr;  // the driver's cuTensorMapEncodeTiled; null: not on this device
};

}  // namespace tandem::ops::cuda
