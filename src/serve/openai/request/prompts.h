// The `prompt` of /v1/completions → one text request for each prompt. A pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "serve/json.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

constexpr size_t kMaxPrompts = 128;  // of one request, times its choices

// Appends a copy of `options` with each prompt: a string, strings, token ids, or arrays of them.
// `prompt` may be null: there is none.
Status ReadPrompts(const Json* prompt, const TextRequest& options,
                   std::vector<TextRequest>& prompts);

// Appends the list's token ids; false if it holds anything else.
bool ReadTokenIds(const Json::Array& list, std::vector<int32_t>& tokens);

}  // namespace tandem::serve::openai
