// GPTQ's layouts: NAME.qweight [columns / 8, rows] (or / 4, of 8 bits) has words of elements along
// the columns, NAME.qzeros [groups, rows / 8] words of zero points, NAME.scales [groups, rows] the
// scales and NAME.g_idx the group of each column. The first version stores zero points less one.
// Stateless.
#pragma once

#include "checkpoint/layouts/layout.h"

namespace tandem {

const Layout& GptqLayout();
const Layout& GptqV2Layout();

}  // namespace tandem
