// NVFP4: pairs of 4-bit floating-point elements with a scale in fp8 for each group of columns and
// one more for the tensor. modelopt multiplies by NAME.weight_scale_2; compressed-tensors divides
// by NAME.weight_global_scale. Stateless.
#pragma once

#include "checkpoint/layouts/layout.h"

namespace tandem {

const Layout& NvFp4Layout();
const Layout& NvFp4PackedLayout();

}  // namespace tandem
