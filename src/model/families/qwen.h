// Qwen 1, Qwen 1.5 to 2.5 and Qwen 3, all without experts.
#pragma once

#include "model/family.h"

namespace tandem {

Family QwenFamily();
Family Qwen2Family();
Family Qwen3Family();

}  // namespace tandem
