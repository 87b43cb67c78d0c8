#include "ops/backend.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/convert.h"

namespace tandem::ops {
namespace {

using Element = QuantScheme::Element;

constexpr float kFp4Values[] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
constexpr float kInt4Zero = 8.0f;

void CheckPart(const LinearPart& part) {
  const QuantScheme& scheme = part.scheme;
  TANDEM_CHECK(part.scale.empty() == scheme.is_plain(), "scales where they are quantized");
  TANDEM_CHECK(part.zero.empty() != scheme.zero_points, "zero points where the scheme has them");
  TANDEM_CHECK(part.input_factors.empty() != scheme.input_factors, "factors as the scheme says");
  TANDEM_CHECK(part.input_order.empty() != scheme.input_order, "an order as the scheme says");
  const int64_t scales = part.scale.empty() ? 1 : part.scale.NumElements();
  TANDEM_CHECK(
      scales == 1 || scales == scheme.row_blocks(part.rows()) * scheme.column_blocks(part.cols()),
      "a scale for each block, or one for all");
}

// Elements of a row without their scales.
void ToFloats(const LinearPart& part, int64_t row, float* out) {
  const int64_t cols = part.cols();
  const Tensor stored = part.weight.RowRange(row, 1);
  if (part.scheme.elements_per_byte() == 1) {
    if (part.scheme.element == Element::kInt8) {
      std::copy_n(stored.As<int8_t>(), cols, out);
    } else {
      ConvertElements(stored, {out, DType::kF32, {1, cols}, {}});
    }
    return;
  }
  const bool integers = part.scheme.element == Element::kInt4;
  for (int64_t col = 0; col < cols; ++col) {
    const int byte = stored.As<uint8_t>()[col / 2];
    const int element = col % 2 == 0 ? byte & 15 : byte >> 4;
    out[col] = integers ? static_cast<float>(element) : kFp4Values[element];
  }
}

float ZeroOf(const LinearPart& part, int64_t block) {
  if (part.scheme.element == Element::kInt4) {
    return part.zero.empty() ? kInt4Zero : static_cast<float>(part.zero.As<uint8_t>()[block]);
  }
  return part.zero.empty() ? 0.0f : static_cast<float>(part.zero.As<int8_t>()[block]);
}

}  // namespace

StackedParts Stack(std::span<const LinearPart> parts, const WeightFormat& kept) {
  TANDEM_CHECK(!parts.empty(), "a weight has at least one part");
  const LinearPart& first = parts.front();
  StackedParts stacked{.format = {first.weight.dtype, first.scheme}, .cols = first.cols()};
  TANDEM_CHECK(stacked.format.element() == first.weight.dtype, "elements of the scheme's type");
  for (const LinearPart& part : parts) {
    CheckPart(part);
    TANDEM_CHECK(part.cols() == stacked.cols, "parts differ in width");
    stacked.alike =
        stacked.alike && part.weight.dtype == first.weight.dtype && part.scheme == first.scheme;
    stacked.rows += part.rows();
    stacked.has_bias = stacked.has_bias || !part.bias.empty();
  }
  TANDEM_CHECK(stacked.alike || kept.scheme.is_plain(), "parts differ in kind");
  return stacked;
}

void WidenRow(const LinearPart& part, int64_t row, float* out) {
  ToFloats(part, row, out);
  const QuantScheme& scheme = part.scheme;
  if (scheme.is_plain()) return;
  const int64_t cols = part.cols();
  const int64_t blocks = scheme.column_blocks(cols);
  const int64_t width = scheme.block_columns == 0 ? cols : scheme.block_columns;
  const int64_t first = part.scale.NumElements() == 1 ? 0 : row / scheme.block_rows * blocks;
  for (int64_t col = 0; col < cols; ++col) {
    const int64_t block = part.scale.NumElements() == 1 ? 0 : first + col / width;
    out[col] = (out[col] - ZeroOf(part, block)) * part.scale.As<float>()[block];
  }
  if (scheme.input_order) {
    const std::vector<float> sorted(out, out + cols);
    for (int64_t col = 0; col < cols; ++col) {
      out[part.input_order.As<int32_t>()[col]] = sorted[static_cast<size_t>(col)];
    }
  }
  if (!scheme.input_factors) return;
  for (int64_t col = 0; col < cols; ++col) out[col] *= part.input_factors.As<float>()[col];
}

}  // namespace tandem::ops
