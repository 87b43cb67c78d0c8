// The messages of a chat request → what the chat template gets. Pure functions; errors are
// INVALID_ARGUMENT "field: sentence".
#pragma once

#include <string>

#include "base/status.h"
#include "serve/json.h"

namespace tandem::serve::openai {

// The body's `messages` as a JSON array of {role, content} with content a string.
Result<std::string> ReadMessages(const Json& body);

}  // namespace tandem::serve::openai
