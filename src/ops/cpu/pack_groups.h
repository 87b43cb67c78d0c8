// Packs the rows of quantized weights, and of plain ones that it rounds, into the groups of
// kernels.h. Pure functions over host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/backend.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

// Whether weights can be packed under this scheme, and whether plain ones can be rounded to it.
bool CanPack(const QuantScheme& scheme);
bool CanRound(const QuantScheme& scheme);

// The kernels' layout for weights of this scheme and width; no elements if the scheme is plain.
QuantLayout LayoutOf(const QuantScheme& scheme, int64_t cols, const CpuKernels& kernels);

// Elements of a row as QuantScheme numbers them, one a byte, with the scale and the zero point of
// each block of columns.
struct QuantizedRow {
  std::vector<uint8_t> elements;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;  // empty without zero points
};
// A row of a part as it is stored.
void ReadRow(const LinearPart& part, int64_t row, QuantizedRow& out);
// A row of any part, rounded to `scheme` (CanRound). A block with a value that is not finite is
// NaN.
void ReadRounded(const LinearPart& part, int64_t row, const QuantScheme& scheme, QuantizedRow& out);

// Writes it as row `row` of a matrix of `cols` columns: to its place in `packed`, which was zeroed,
// and to scales[row] if the groups have no scales.
void PackGroups(const QuantizedRow& values, const QuantScheme& scheme, const QuantLayout& layout,
                int64_t row, int64_t cols, void* packed, float* scales);

}  // namespace tandem::ops::cpu
