// Packs linear weights into device memory: row-major, every row padded with zeros to whole 16-byte
// pieces, so that a kernel reads any row in such pieces; those of 4 bits in tiles (Int4Layout).
// Load time only: it allocates and waits.
#pragma once

#include <functional>
#include <span>

#include "ops/backend.h"
#include "ops/cuda/device/context.cuh"
#include "ops/cuda/linear/int4_layout.h"

namespace tandem::ops::cuda {

// Number of elements from one packed row to the next.
constexpr int64_t PackedPitch(int64_t cols, DType stored) {
  const int64_t piece = 16 / static_cast<int64_t>(SizeOf(stored));
  return CeilDiv(cols, piece) * piece;
}
inline bool IsInt4(const QuantScheme& scheme) {
  return scheme.element == QuantScheme::Element::kInt4;
}
// Whether products read elements of this scheme as they are stored.
inline bool HasKernels(const QuantScheme& scheme) {
  using Element = QuantScheme::Element;
  if (scheme.is_plain()) return true;
  if (IsInt4(scheme)) return HasInt4Groups(scheme);
  const bool bytes = scheme.element == Element::kFp8E4M3 || scheme.element == Element::kInt8;
  return bytes && scheme.block_rows == 1 && scheme.block_columns == 0 && !scheme.zero_points;
}

// Bytes of the buffers that PackLinear makes of elements, their scales and zero points, and of what
// is done to the inputs.
struct PackedSizes {
  int64_t data = 0;
  int64_t scales = 0;
  int64_t zeros = 0;
  int64_t input_factors = 0;
  int64_t input_order = 0;
};
inline PackedSizes SizesOf(int64_t rows, int64_t cols, const WeightFormat& kept) {
  const QuantScheme& scheme = kept.scheme;
  PackedSizes sizes;
  if (IsInt4(scheme)) {
    const Int4Layout layout(rows, cols, scheme);
    sizes.data = layout.weight_bytes();
    sizes.scales = layout.scale_bytes();
    if (scheme.zero_points) sizes.zeros = layout.zero_bytes();
  } else {
    const DType element = kept.element();
    sizes.data = rows * PackedPitch(cols, element) * static_cast<int64_t>(SizeOf(element));
    if (!scheme.is_plain()) sizes.scales = rows * int64_t{sizeof(float)};
  }
  if (scheme.input_factors) sizes.input_factors = cols * int64_t{sizeof(float)};
  if (scheme.input_order) sizes.input_order = cols * int64_t{sizeof(int32_t)};
  return sizes;
}
inline int64_t PackedBytes(int64_t rows, int64_t cols, const WeightFormat& kept) {
  const PackedSizes sizes = SizesOf(rows, cols, kept);
  return sizes.data + sizes.scales + sizes.zeros + sizes.input_factors + sizes.input_order;
}

// As Backend::CheckFormat.
Status CheckFormat(const WeightFormat& from, const WeightFormat& kept);
// As Backend::PackLinear; `allocate` gives zeroed device memory that the result owns.
Result<LinearWeight> PackLinear(const Context& context,
                                const std::function<Result<Buffer>(size_t bytes)>& allocate,
                                std::span<const LinearPart> parts, const WeightFormat& kept);

}  // namespace tandem::ops::cuda
