// Phi-3, Phi-3.5 and Phi-4, without experts.
#pragma once

#include "model/family.h"

namespace tandem {

Family Phi3Family();

}  // namespace tandem
