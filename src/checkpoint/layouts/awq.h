// AutoAWQ's layouts of 4-bit elements with a scale and a zero point for each group of columns.
// NAME.qweight has words of 8 elements, NAME.qzeros words of 8 zero points, NAME.scales the scales.
// In the one for products of many rows (gemm) the tensors are transposed and a word holds elements
// of 8 rows; in the one for a single row (gemv) it holds 8 columns. Stateless.
#pragma once

#include "checkpoint/layouts/layout.h"

namespace tandem {

const Layout& AwqGemmLayout();
const Layout& AwqGemvLayout();

}  // namespace tandem
