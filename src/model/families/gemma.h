// Gemma 1, 2 and 3 (text).
#pragma once

#include "model/family.h"

namespace tandem {

Family GemmaFamily();
Family Gemma2Family();
Family Gemma3Family();

}  // namespace tandem
