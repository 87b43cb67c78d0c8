#include "ops/cpu/pack.h"

#include <cstring>

namespace tandem::ops::cpu {
namespace {

// Element (row, col) goes to panel row / 16, then [col / kGroup][row % 16][col % kGroup].
template <typename T, int kGroup>
void PackRow(const void* row_data, int64_t row, int64_t cols, void* packed) {
  T* out = static_cast<T*>(packed) + row / kPanelOutputs * PackedInputs(cols, {}) * kPanelOutputs +
           row % kPanelOutputs * kGroup;
  const auto* in = static_cast<const char*>(row_data);
  const int64_t whole = cols / kGroup;
  for (int64_t group = 0; group < whole; ++group) {
    std::memcpy(out + group * kPanelOutputs * kGroup, in + group * kGroup * sizeof(T),
                kGroup * sizeof(T));
  }
  std::memcpy(out + whole * kPanelOutputs * kGroup, in + whole * kGroup * sizeof(T),
              static_cast<size_t>(cols - whole * kGroup) * sizeof(T));
}

}  // namespace

Element ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Element::kF32;
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBF16;
    case DType::kF8E4M3:
      return Element::kFp8;
    case DType::kI8:
      return Element::kI8;
    default:
      TANDEM_CHECK(false, "not a type of weights, activations, keys or values");
      return Element::kF32;
  }
}

int64_t PackedInputs(int64_t cols, const QuantLayout& layout) {
  const int64_t multiple = layout.elements == Quantized::kNone ? kInputsMultiple : layout.inputs;
  return (cols + multiple - 1) / multiple * multiple;
}

int64_t NumPanels(int64_t rows) { return (rows + kPanelOutputs - 1) / kPanelOutputs; }

int64_t PanelBytes(int64_t cols, DType element, const QuantLayout& layout) {
  const int64_t inputs = PackedInputs(cols, layout);
  if (layout.elements != Quantized::kNone) return inputs / layout.inputs * layout.group_bytes;
  return inputs * kPanelOutputs * static_cast<int64_t>(SizeOf(element));
}

void PackWeightRow(Element element, const void* row_data, int64_t row, int64_t cols, void* packed) {
  switch (element) {
    case Element::kF32:
      return PackRow<uint32_t, 1>(row_data, row, cols, packed);
    case Element::kF16:
      return PackRow<uint16_t, 1>(row_data, row, cols, packed);
    case Element::kBF16:
      return PackRow<uint16_t, 2>(row_data, row, cols, packed);
    case Element::kFp8:
    case Element::kI8:
      break;
  }
}

}  // namespace tandem::ops::cpu
