// The Llama family's row of the table: Llama 1, 2, 3, 3.1, 3.2, 3.3 and models of the same
// architecture. Pure functions; see family.h.
#pragma once

#include "model/family.h"

namespace tandem {

Family LlamaFamily();

}  // namespace tandem
