// Mistral: Llama with a sliding window in some releases.
#pragma once

#include "model/family.h"

namespace tandem {

Family MistralFamily();

}  // namespace tandem
