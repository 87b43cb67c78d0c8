// Pairs of 4-bit floating-point elements. NVFP4 has a scale in fp8 for each group of columns and
// one more for the tensor: modelopt multiplies by NAME.weight_scale_2, compressed-tensors divides
// by NAME.weight_global_scale. MXFP4 has a power of two, as a byte, for each group of 32 columns.
// Stateless.
#pragma once

#include "checkpoint/layouts/layout.h"

namespace tandem {

const Layout& NvFp4Layout();
const Layout& NvFp4PackedLayout();
const Layout& MxFp4Layout();        // NAME.weight, NAME.weight_scale
const Layout& MxFp4PackedLayout();  // NAME.weight_packed, NAME.weight_scale
const Layout& MxFp4BlocksLayout();  // NAME_blocks, NAME_scales

}  // namespace tandem
