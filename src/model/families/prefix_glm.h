// ChatGLM-6B and GLM-10B: the tokens of a prompt see each other both ways, and the output stands
// where the prompt has a mask.
#pragma once

#include "model/family.h"

namespace tandem {

Family ChatGlm6bFamily();
Family Glm10bFamily();

}  // namespace tandem
