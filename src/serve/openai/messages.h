// A chat request's messages, tools and options of the template → what the chat template gets. Pure
// functions; errors are INVALID_ARGUMENT "field: sentence".
#pragma once

#include "base/status.h"
#include "serve/json.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// Reads `messages`, `tools`, `chat_template_kwargs`, `add_generation_prompt` and
// `continue_final_message` into `text`. Messages keep role, content (a string, or parts of text),
// name, tool_call_id, reasoning_content and tool_calls, whose arguments become objects.
Status ReadChat(const Json& body, TextRequest& text);

}  // namespace tandem::serve::openai
