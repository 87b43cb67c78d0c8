// Mixtral: Mistral with experts.
#pragma once

#include "model/family.h"

namespace tandem {

Family MixtralFamily();

}  // namespace tandem
