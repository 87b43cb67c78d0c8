// PromptLayouts: how each model sees the prompt of a request (model/prompt_rules.h). Plain values.
#pragma once

#include <array>

#include "model/prompt_rules.h"
#include "runtime/cache/model_index.h"
#include "runtime/request/request.h"

namespace tandem {

using PromptLayouts = std::array<ops::PromptLayout, kNumModels>;

// Adds to the request's cache key what decides the blocks of its prompt beside the tokens before
// them. INVALID_ARGUMENT names what the prompt lacks, UNIMPLEMENTED what such a prompt cannot have.
Result<PromptLayouts> LayOut(const std::array<PromptRules, kNumModels>& rules, Request& request);

}  // namespace tandem
