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
// Whether products read elements of this scheme as they are stored.
inline bool HasKernels(const QuantScheme& scheme) {
  const bool fp8 = scheme.element == QuantScheme::Element::kFp8E4M3 && scheme.block_rows == 1 &&
                   scheme.block_columns == 0 && !scheme.input_factors && !scheme.input_order;
  return scheme.is_plain() || fp8;
}
// Bytes that PackLinear takes: weights, and a scale for each row of quantized ones.
inline int64_t PackedBytes(int64_t rows, int64_t cols, const WeightFormat& kept) {
  const int64_t scales = kept.scheme.is_plain() ? 0 : rows * int64_t{sizeof(float)};
  const DType element = kept.element();
  return rows * PackedPitch(cols, element) * static_cast<int64_t>(SizeOf(element)) + scales;
}

// As Backend::CheckFormat.
Status CheckFormat(const WeightFormat& from, const WeightFormat& kept);
// As Backend::PackLinear; `allocate` gives zeroed device memory that the result owns.
Result<LinearWeight> PackLinear(const Context& context,
                                const std::function<Result<Buffer>(size_t bytes)>& allocate,
                                std::span<const LinearPart> parts, const WeightFormat& kept);

}  // namespace tandem::ops::cuda
