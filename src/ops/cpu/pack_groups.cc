#include "ops/cpu/pack_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/pack.h"
#include "ops/round_row.h"

namespace tandem::ops::cpu {
namespace {

using SchemeElement = QuantScheme::Element;

constexpr int64_t kMostGroupInputs = 128;
constexpr int64_t kGroupMultiple = 16;  // what kernels take at once, of every type

Quantized ElementsOf(SchemeElement element) {
  switch (element) {
    case SchemeElement::kPlain:
      return Quantized::kNone;
    case SchemeElement::kFp8E4M3:
      return Quantized::kFp8;
    case SchemeElement::kInt8:
      return Quantized::kInt8;
    case SchemeElement::kInt4:
      return Quantized::kInt4;
    case SchemeElement::kFp4E2M1:
      return Quantized::kFp4;
  }
  return Quantized::kNone;
}

// A block that is longer than a group becomes several, with the same scale.
int64_t GroupInputs(int64_t block_columns) {
  int64_t inputs = kMostGroupInputs;
  while (block_columns % inputs != 0) inputs -= kGroupMultiple;
  return inputs;
}

// Inputs of the groups of a row that has one scale: as few groups as possible, of the same length.
int64_t EqualGroups(int64_t cols, int64_t most) {
  constexpr int64_t kMultiple = 64;  // a tile's inputs
  const int64_t groups = (cols + most - 1) / most;
  const int64_t inputs = (cols + groups - 1) / groups;
  return (inputs + kMultiple - 1) / kMultiple * kMultiple;
}

int64_t BlockWidth(const QuantScheme& scheme, int64_t cols) {
  return scheme.block_columns == 0 ? cols : scheme.block_columns;
}

// One a byte.
void CopyElements(const QuantScheme& scheme, const uint8_t* bytes, int64_t cols,
                  QuantizedRow& out) {
  out.elements.resize(static_cast<size_t>(cols));
  if (scheme.elements_per_byte() == 1) {
    std::copy_n(bytes, cols, out.elements.begin());
    return;
  }
  for (size_t i = 0; i < out.elements.size(); ++i) {
    out.elements[i] = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
  }
}

// fp8 alone has no infinities but a NaN, which the kernels leave to its scale.
void MoveNaNsToScales(const QuantScheme& scheme, QuantizedRow& row) {
  const int64_t width = BlockWidth(scheme, std::ssize(row.elements));
  for (size_t i = 0; i < row.elements.size(); ++i) {
    if ((row.elements[i] & 0x7fu) != 0x7fu) continue;
    row.scales[i / static_cast<size_t>(width)] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

bool CanPack(const QuantScheme& scheme) {
  return !scheme.is_plain() && scheme.block_columns % kGroupMultiple == 0;
}

bool CanRound(const QuantScheme& scheme) {
  return CanPack(scheme) && scheme.element != SchemeElement::kFp4E2M1 && scheme.block_rows == 1 &&
         !scheme.zero_points && !scheme.input_factors && !scheme.input_order &&
         scheme.inputs != QuantScheme::Inputs::kStatic;
}

QuantLayout LayoutOf(const QuantScheme& scheme, int64_t cols, const CpuKernels& kernels) {
  QuantLayout layout;
  layout.elements = ElementsOf(scheme.element);
  if (layout.elements == Quantized::kNone) return layout;
  // The sum of rounded inputs would have to be known to subtract zero points from the weights.
  layout.round_inputs = kernels.rounds_inputs && layout.elements == Quantized::kInt8 &&
                        !scheme.zero_points && scheme.inputs != QuantScheme::Inputs::kPlain;
  layout.inputs =
      scheme.block_columns > 0
          ? GroupInputs(scheme.block_columns)
          : EqualGroups(cols, kernels.rounds_inputs && layout.elements == Quantized::kInt8
                                  ? kRoundedGroupInputs
                                  : kMostGroupInputs);
  layout.group_bytes = layout.inputs * kPanelOutputs / scheme.elements_per_byte();
  if (scheme.block_columns > 0) {
    layout.scales_at = layout.group_bytes;
    layout.group_bytes += kPanelOutputs * int64_t{sizeof(float)};
  }
  if (scheme.zero_points) {
    layout.zeros_at = layout.group_bytes;
    layout.group_bytes += kPanelOutputs;
  }
  return layout;
}

void ReadRow(const LinearPart& part, int64_t row, QuantizedRow& out) {
  const QuantScheme& scheme = part.scheme;
  const int64_t cols = part.cols();
  const auto* bytes = static_cast<const uint8_t*>(part.weight.RowRange(row, 1).data);
  CopyElements(scheme, bytes, cols, out);
  const int64_t blocks = scheme.column_blocks(cols);
  const bool one = part.scale.NumElements() == 1;
  const int64_t first = one ? 0 : row / scheme.block_rows * blocks;
  out.scales.clear();
  out.zeros.clear();
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t at = one ? 0 : first + block;
    out.scales.push_back(part.scale.As<float>()[at]);
    if (scheme.zero_points) out.zeros.push_back(part.zero.As<uint8_t>()[at]);
  }
  if (scheme.element == SchemeElement::kFp8E4M3) MoveNaNsToScales(scheme, out);
}

void ReadRounded(const LinearPart& part, int64_t row, const QuantScheme& scheme,
                 QuantizedRow& out) {
  const int64_t cols = part.cols();
  std::vector<float> values(static_cast<size_t>(cols));
  WidenRow(part, row, values.data());
  std::vector<uint8_t> bytes(values.size());
  out.scales.resize(static_cast<size_t>(scheme.column_blocks(cols)));
  out.zeros.clear();
  RoundRow(scheme, values, {}, bytes.data(), out.scales.data());
  CopyElements(scheme, bytes.data(), cols, out);
}

void PackGroups(const QuantizedRow& values, const QuantScheme& scheme, const QuantLayout& layout,
                int64_t row, int64_t cols, void* packed, float* scales) {
  const int64_t output = row % kPanelOutputs;
  const int64_t groups = PackedInputs(cols, layout) / layout.inputs;
  auto* group = static_cast<uint8_t*>(packed) + row / kPanelOutputs * groups * layout.group_bytes;
  const int64_t width = BlockWidth(scheme, cols);
  for (int64_t first = 0; first < cols; first += layout.inputs, group += layout.group_bytes) {
    const uint8_t* in = values.elements.data() + first;
    const int64_t count = std::min(layout.inputs, cols - first);
    switch (layout.elements) {
      case Quantized::kNone:
        break;
      case Quantized::kFp8:
        for (int64_t i = 0; i < count; ++i) group[(i / 2 * 16 + output) * 2 + i % 2] = in[i];
        break;
      case Quantized::kInt8:
        for (int64_t i = 0; i < count; ++i) group[(i / 4 * 16 + output) * 4 + i % 4] = in[i] ^ 0x80;
        break;
      case Quantized::kInt4:
      case Quantized::kFp4:
        for (int64_t i = 0; i < count; ++i) {
          const int64_t bits = i % 2 * 16 + i % 8 / 2 * 4;
          uint8_t& byte = group[(i / 8 * 16 + output) * 4 + bits / 8];
          byte = static_cast<uint8_t>(byte | in[i] << bits % 8);
        }
        break;
    }
    const auto block = static_cast<size_t>(first / width);
    if (layout.scales_at > 0) {
      reinterpret_cast<float*>(group + layout.scales_at)[output] = values.scales[block];
    }
    if (layout.zeros_at > 0) group[layout.zeros_at + output] = values.zeros[block];
  }
  if (layout.scales_at == 0) scales[row] = values.scales.front();
}

}  // namespace tandem::ops::cpu
