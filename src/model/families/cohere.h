// Cohere: Command R.
#pragma once

#include "model/family.h"

namespace tandem {

Family CohereFamily();

}  // namespace tandem
