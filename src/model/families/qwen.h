// Qwen 1, Qwen 1.5 to 2.5 and Qwen 3, the last two with and without experts.
#pragma once

#include "model/family.h"

namespace tandem {

Family QwenFamily();
Family Qwen2Family();
Family Qwen3Family();
Family Qwen2MoeFamily();
Family Qwen3MoeFamily();

}  // namespace tandem
