// The input of a response → the messages that the chat template gets. A pure function; errors are
// INVALID_ARGUMENT "field: sentence".
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "serve/json.h"

namespace tandem::serve::openai {

// `input`: a string, or items: messages, function calls, their outputs, and reasoning, which is
// left out; null: missing. The instructions are a system message before them. Returns a JSON array.
Result<std::string> ReadInput(const Json* input, const std::optional<std::string>& instructions);

}  // namespace tandem::serve::openai
