// GPT-J.
#pragma once

#include "model/family.h"

namespace tandem {

Family GptJFamily();

}  // namespace tandem
