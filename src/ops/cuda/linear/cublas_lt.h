// CublasLt: large matrix products by NVIDIA's library, which is loaded at run time: on a machine
// without it our own kernels are used. Used by the executor's thread; outside WarmUp a product
// allocates no device memory. While the stream is captured it never waits; otherwise the first
// product of a shape waits for the stream's earlier work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "ops/cuda/device/context.cuh"
#include "tensor/dtype.h"

namespace tandem::ops::cuda {

// out [tokens, rows] = x [tokens, cols] * weight [rows, cols]^T + bias, all on the device; x and
// out aligned to 16 bytes.
struct LtProduct {
  DType input = DType::kBF16;   // of x and weight: bf16, fp16, fp8 or int8
  DType output = DType::kBF16;  // bf16, fp16 or fp32; int32, and that alone, of int8
  int64_t tokens = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t pitch = 0;  // elements from one weight row to the next
  const void* x = nullptr;
  const void* weight = nullptr;
  void* out = nullptr;
  // fp8: factors of the sums of a token and of a weight row, [tokens] and [rows]; both null: none.
  const float* token_scales = nullptr;
  const float* row_scales = nullptr;
  // [rows] of LtBiasType, or null.
  const void* bias = nullptr;
};

// The bias type that the library requires.
constexpr DType LtBiasType(DType input, DType output) {
  return output == DType::kF32 && input == DType::kF8E4M3 ? DType::kBF16 : output;
}

class CublasLt {
 public:
  // Null if the library is missing. `workspace` is device memory that outlives this.
  static std::unique_ptr<CublasLt> Load(const Context& context, void* workspace,
                                        size_t workspace_bytes);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Enqueues the product on the context's stream. Returns false, and enqueues nothing, if the
  // library has no algorithm for it. The algorithm is looked up once for each shape, with the
  // number of tokens rounded up to steps: the library's first choice, or what WarmUp found.
  bool Run(const LtProduct& product);

  // Runs `work`. In it the first product of each shape of at most 512 tokens is computed by several
  // of the library's algorithms, which are timed, and the shape keeps the fastest (ChooseFastest).
  // Products that are captured in it are not timed, nor are more once all warm-ups together have
  // taken 2 s: they use the library's first choice.
  void WarmUp(const std::function<void()>& work);

 private:
  class Library;
  explicit CublasLt(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace tandem::ops::cuda
