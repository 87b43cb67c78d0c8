// The layout of fp8 and int8 weights, a byte each, that most tools share: NAME.weight as a
// plain matrix, NAME.weight_scale (or NAME.weight_scale_inv) for the tensor, its rows, groups or
// blocks, NAME.weight_zero_point and NAME.input_scale where there are any. Stateless.
#pragma once

#include "checkpoint/layouts/layout.h"

namespace tandem {

const Layout& BytesLayout();

}  // namespace tandem
