// GPT-2 and what was made of it: SantaCoder and StarCoder (GPTBigCode).
#pragma once

#include "model/family.h"

namespace tandem {

Family Gpt2Family();
Family SantaCoderFamily();
Family GptBigCodeFamily();

}  // namespace tandem
