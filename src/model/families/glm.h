// GLM-4 and its predecessors: ChatGLM 2 and 3, GLM-4-9B in its two forms, GLM-4-0414.
#pragma once

#include "model/family.h"

namespace tandem {

Family ChatGlmFamily();
Family GlmFamily();
Family Glm4Family();
Family Glm4MoeFamily();

}  // namespace tandem
