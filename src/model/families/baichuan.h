// Baichuan 1 and 2.
#pragma once

#include "model/family.h"

namespace tandem {

Family BaichuanFamily();

}  // namespace tandem
