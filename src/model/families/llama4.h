// Llama 4, its text model alone: chunks, layers without positions, experts.
#pragma once

#include "model/family.h"

namespace tandem {

Family Llama4Family();

}  // namespace tandem
