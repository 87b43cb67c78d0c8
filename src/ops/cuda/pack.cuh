// Packs linear weights into device memory: row-major, every row padded with zeros to whole 16-byte
// pieces, so that a kernel reads any row in such pieces. Load time only: it allocates and waits.
#pragma once

#include <functional>
#include <span>

#include "ops/backend.h"
#include "ops/cuda/context.cuh"

namespace tandem::ops::cuda {

// Number of elements from one packed row to the next.
constexpr int64_t PackedPitch(int64_t cols, DType stored) {
  const int64_t piece = 16 / static_cast<int64_t>(SizeOf(stored));
  return CeilDiv(cols, piece) * piece;
}
// Bytes that PackLinear takes: weights, and the scales of fp8.
constexpr int64_t PackedBytes(int64_t rows, int64_t cols, DType stored) {
  const int64_t scales = stored == DType::kF8E4M3 ? rows * int64_t{sizeof(float)} : 0;
  return rows * PackedPitch(cols, stored) * static_cast<int64_t>(SizeOf(stored)) + scales;
}

// As Backend::PackLinear; `allocate` gives zeroed device memory that the result owns.
Result<LinearWeight> PackLinear(const Context& context,
                                const std::function<Result<Buffer>(size_t bytes)>& allocate,
                                std::span<const LinearPart> parts, DType stored);

}  // namespace tandem::ops::cuda
