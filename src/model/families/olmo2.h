// OLMo 2.
#pragma once

#include "model/family.h"

namespace tandem {

Family Olmo2Family();

}  // namespace tandem
