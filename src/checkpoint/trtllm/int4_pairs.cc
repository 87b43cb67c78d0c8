#include "checkpoint/trtllm/int4_pairs.h"

namespace tandem {
namespace {

// Between an element less 8 and a signed one of 4 bits: the highest bit changes.
constexpr unsigned kSign = 8;

unsigned Element(const Tensor& memory, int64_t row, int64_t column) {
  const unsigned byte = memory.As<uint8_t>()[row * memory.dim(1) + column / 2];
  return column % 2 == 0 ? byte & 15u : byte >> 4;
}

}  // namespace

bool HoldsInt4(const ModelSpec& spec, const FusedTensor& tensor) {
  const QuantScheme scheme = SchemeOf(spec, tensor.roles.front(), tensor.layer);
  return tensor.part == WeightPart::kWeight && scheme.element == QuantScheme::Element::kInt4;
}

void PairRows(const Tensor& memory, const Tensor& file) {
  auto* out = file.As<uint8_t>();
  for (int64_t pair = 0; pair < file.dim(0); ++pair) {
    for (int64_t column = 0; column < file.dim(1); ++column) {
      const unsigned low = Element(memory, 2 * pair, column) ^ kSign;
      const unsigned high = Element(memory, 2 * pair + 1, column) ^ kSign;
      *out++ = static_cast<uint8_t>(high << 4 | low);
    }
  }
}

void UnpairRows(const Tensor& file, int64_t first, const Tensor& memory) {
  auto* out = memory.As<uint8_t>();
  for (int64_t row = first; row < first + memory.dim(0); ++row) {
    const uint8_t* from = file.As<uint8_t>() + row / 2 * file.dim(1);
    const int shift = row % 2 == 0 ? 0 : 4;
    for (int64_t column = 0; column < file.dim(1); column += 2) {
      const unsigned low = ((from[column] >> shift) & 15u) ^ kSign;
      const unsigned high = ((from[column + 1] >> shift) & 15u) ^ kSign;
      *out++ = static_cast<uint8_t>(high << 4 | low);
    }
  }
}

}  // namespace tandem
