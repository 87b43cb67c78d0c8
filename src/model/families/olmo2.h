// OLMo 2 and 3.
#pragma once

#include "model/family.h"

namespace tandem {

Family Olmo2Family();
Family Olmo3Family();

}  // namespace tandem
