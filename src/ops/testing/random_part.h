// A quantized part of a linear weight as a file stores it, from a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/backend.h"

namespace tandem::ops {

// A part in host memory, with the memory.
struct OwnedPart {
  std::vector<uint8_t> elements, zeros;
  std::vector<float> scales, factors;
  std::vector<int32_t> order;
  LinearPart part;
};

inline OwnedPart RandomPart(const QuantScheme& scheme, int64_t rows, int64_t cols, uint32_t seed,
                            bool one_scale = false) {
  std::mt19937 rng(seed);
  OwnedPart owned;
  const auto byte = [&] { return static_cast<uint8_t>(rng()); };
  owned.elements.resize(static_cast<size_t>(rows * cols / scheme.elements_per_byte()));
  for (uint8_t& element : owned.elements) {
    element = byte();
    const bool nan = scheme.element == QuantScheme::Element::kFp8E4M3 && (element & 0x7f) == 0x7f;
    if (nan) element = 0x03;  // a subnormal
  }
  const int64_t blocks = scheme.row_blocks(rows) * scheme.column_blocks(cols);
  const int64_t scales = one_scale ? 1 : blocks;
  std::uniform_real_distribution<float> uniform(0.5f, 2.0f);
  for (int64_t i = 0; i < scales; ++i) {
    owned.scales.push_back(0.01f * uniform(rng));
    const int zero = static_cast<int>(rng() % 16);
    owned.zeros.push_back(static_cast<uint8_t>(
        scheme.element == QuantScheme::Element::kInt8 ? 16 * zero - 128 : zero));
  }
  for (int64_t i = 0; i < cols; ++i) {
    owned.factors.push_back(uniform(rng));
    owned.order.push_back(static_cast<int32_t>(i));
  }
  std::ranges::shuffle(owned.order, rng);
  const Shape shape =
      one_scale ? Shape{1} : Shape{scheme.row_blocks(rows), scheme.column_blocks(cols)};
  const WeightFormat format{DType::kBF16, scheme};
  LinearPart& part = owned.part;
  part.scheme = scheme;
  part.weight = {owned.elements.data(), format.element(), {rows, format.row_length(cols)}, {}};
  part.scale = {owned.scales.data(), DType::kF32, shape, {}};
  if (scheme.zero_points) part.zero = {owned.zeros.data(), format.element(), shape, {}};
  if (scheme.input_factors) part.input_factors = {owned.factors.data(), DType::kF32, {cols}, {}};
  if (scheme.input_order) part.input_order = {owned.order.data(), DType::kI32, {cols}, {}};
  return owned;
}

}  // namespace tandem::ops
