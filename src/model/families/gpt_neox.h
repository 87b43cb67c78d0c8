// GPT-NeoX, Pythia.
#pragma once

#include "model/family.h"

namespace tandem {

Family GptNeoXFamily();

}  // namespace tandem
