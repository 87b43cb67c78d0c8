// compressed-tensors' pack-quantized layout of integers: NAME.weight_packed [rows, columns / 8] (or
// / 4, of 8 bits) has words of elements along the columns, NAME.weight_scale the scales of rows or
// groups, NAME.weight_zero_point words of zero points along the rows, NAME.weight_g_idx the group
// of each column. Stateless.
#pragma once

#include "checkpoint/layouts/layout.h"

namespace tandem {

const Layout& PackedLayout();

}  // namespace tandem
