// Packs the rows of a weight matrix into the panels of kernels.h. Pure functions over host memory.
#pragma once

#include <cstdint>

#include "ops/cpu/kernels.h"
#include "tensor/tensor.h"

namespace tandem::ops::cpu {

Element ElementOf(DType dtype);  // a CHECK for types without one
int64_t PackedInputs(int64_t cols, const QuantLayout& layout);
int64_t NumPanels(int64_t rows);
// `element` is the type of plain weights.
int64_t PanelBytes(int64_t cols, DType element, const QuantLayout& layout);

// Writes row `row` ([cols], possibly misaligned) of a matrix to its place in `packed`, which was
// zeroed.
void PackWeightRow(Element element, const void* row_data, int64_t row, int64_t cols, void* packed);

}  // namespace tandem::ops::cpu
