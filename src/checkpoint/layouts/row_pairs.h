// modelopt's layout of 4-bit integers: NAME.weight [rows / 2, columns] holds the signed elements of
// two rows in a byte, the first in the lower half; NAME.weight_scale is of groups of columns, and
// NAME.pre_quant_scale has factors of the inputs. Stateless.
#pragma once

#include "checkpoint/layouts/layout.h"

namespace tandem {

const Layout& RowPairsLayout();

}  // namespace tandem
