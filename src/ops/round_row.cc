#include "ops/round_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/vector_clones.h"

namespace tandem::ops {
namespace {

using Element = QuantScheme::Element;

TANDEM_VECTOR_CLONES
float LargestMagnitude(const float* values, size_t count) {
  FloatX16 most{};
  size_t i = 0;
  for (; i + kVectorFloats <= count; i += kVectorFloats) {
    FloatX16 value;
    LoadVector(values + i, value);
    value = value < 0.0f ? -value : value;
    most = most < value ? value : most;
  }
  float largest = 0.0f;
  for (size_t lane = 0; lane < kVectorFloats; ++lane) {
    largest = largest < most[lane] ? most[lane] : largest;
  }
  for (; i < count; ++i) {
    const float magnitude = __builtin_fabsf(values[i]);
    largest = largest < magnitude ? magnitude : largest;
  }
  return largest;
}

// out = unit * the nearest integer, ties to even, to value * factor clamped to least .. most, which
// are below 2^22. out may be values.
TANDEM_VECTOR_CLONES
void RoundToIntegers(const float* values, size_t count, float factor, float least, float most,
                     float unit, float* out) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  size_t i = 0;
  for (; i + kVectorFloats <= count; i += kVectorFloats) {
    FloatX16 value;
    LoadVector(values + i, value);
    value *= factor;
    value = value < least ? FloatX16{} + least : value;
    value = value > most ? FloatX16{} + most : value;
    StoreVector(out + i, ((value + kShift) - kShift) * unit);
  }
  for (; i < count; ++i) {
    float value = values[i] * factor;
    value = value < least ? least : value;
    value = value > most ? most : value;
    out[i] = ((value + kShift) - kShift) * unit;
  }
}

// Values by their scale, as elements are, times `unit`. out may be values.
void ToElements(Element element, std::span<const float> values, float scale, float unit,
                float* out) {
  const float factor = 1.0f / scale;
  if (element == Element::kFp8E4M3) {
    for (size_t i = 0; i < values.size(); ++i) {
      out[i] = ToFloat(ToFloat8E4M3(values[i] * factor)) * unit;
    }
    return;
  }
  const float most = LargestElement(element);
  const float least = element == Element::kInt4 ? -8.0f : -most;
  RoundToIntegers(values.data(), values.size(), factor, least, most, unit, out);
}

// A finite value times 0 is 0, any other NaN.
TANDEM_VECTOR_CLONES
bool AllFinite(const float* values, size_t count) {
  float sum = 0.0f;
  for (size_t i = 0; i < count; ++i) sum += values[i] * 0.0f;
  return sum == 0.0f;
}

// Calls block(index, first, count, scale) for each block of the row. The scale is NaN if a value of
// the block is not finite.
template <typename Block>
void ForBlocks(const QuantScheme& scheme, std::span<const float> row, ClipShares clip,
               const Block& block) {
  TANDEM_CHECK(scheme.block_rows == 1 && !scheme.zero_points, "a scale for blocks of one row");
  const auto width =
      scheme.block_columns == 0 ? row.size() : static_cast<size_t>(scheme.block_columns);
  const float most = LargestElement(scheme.element);
  for (size_t begin = 0, index = 0; begin < row.size(); begin += width, ++index) {
    const size_t count = std::min(width, row.size() - begin);
    const float share = clip.empty() ? 1.0f : clip[index];
    const float scale = LargestMagnitude(&row[begin], count) * share / most;
    if (!AllFinite(&row[begin], count)) {
      block(index, begin, count, std::numeric_limits<float>::quiet_NaN());
    } else {
      // Zeros, and magnitudes whose scale would be denormal, are zeros by any scale.
      block(index, begin, count, std::isnormal(scale) ? scale : 1.0f);
    }
  }
}

}  // namespace

float LargestElement(Element element) {
  switch (element) {
    case Element::kFp8E4M3:
      return 448.0f;
    case Element::kInt8:
      return 127.0f;
    case Element::kInt4:
      return 7.0f;
    case Element::kPlain:
    case Element::kFp4E2M1:
      break;
  }
  TANDEM_CHECK(false, "a scheme that weights are rounded to");
  return 0.0f;
}

void RoundRow(const QuantScheme& scheme, std::span<const float> row, ClipShares clip,
              void* elements, float* scales) {
  auto* const bytes = static_cast<uint8_t*>(elements);
  constexpr size_t kPiece = 128;
  float values[kPiece];
  ForBlocks(scheme, row, clip, [&](size_t index, size_t begin, size_t count, float scale) {
    scales[index] = scale;
    for (size_t first = begin; first < begin + count; first += kPiece) {
      const size_t piece = std::min(kPiece, begin + count - first);
      if (std::isnan(scale)) {
        std::fill_n(values, piece, 0.0f);  // the scale says it
      } else {
        ToElements(scheme.element, row.subspan(first, piece), scale, /*unit=*/1.0f, values);
      }
      for (size_t i = 0; i < piece; ++i) {
        const size_t column = first + i;
        if (scheme.element == Element::kFp8E4M3) {
          bytes[column] = ToFloat8E4M3(values[i]).bits;
        } else if (scheme.element == Element::kInt8) {
          bytes[column] = static_cast<uint8_t>(static_cast<int8_t>(values[i]));
        } else {
          const auto nibble = static_cast<uint8_t>(values[i] + 8.0f);
          bytes[column / 2] =
              column % 2 == 0 ? nibble : static_cast<uint8_t>(bytes[column / 2] | nibble << 4);
        }
      }
    }
  });
}

void RoundedRow(const QuantScheme& scheme, std::span<const float> row, ClipShares clip,
                std::span<float> out) {
  ForBlocks(scheme, row, clip, [&](size_t /*index*/, size_t begin, size_t count, float scale) {
    ToElements(scheme.element, row.subspan(begin, count), scale, scale, &out[begin]);
  });
}

}  // namespace tandem::ops
