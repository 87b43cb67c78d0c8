// Baichuan 1 and 2 with rotary positions (7B).
#pragma once

#include "model/family.h"

namespace tandem {

Family BaichuanFamily();

}  // namespace tandem
