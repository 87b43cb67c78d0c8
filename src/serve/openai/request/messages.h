// A chat request's messages and options of the template → what the chat template gets. Pure
// functions; errors are INVALID_ARGUMENT "field: sentence".
#pragma once

#include <string>

#include "base/status.h"
#include "serve/json.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// Reads `messages`, `chat_template_kwargs`, `add_generation_prompt` and `continue_final_message`
// into `text`. `tools`: what the template gets, an array; null: none.
Status ReadChat(const Json& body, const Json& tools, TextRequest& text);

// Appends a message in the form that templates expect: role, content (a string, or parts of text),
// name, tool_call_id, reasoning_content and tool_calls, whose arguments become objects. `where`:
// the client's word for the message.
Status WriteMessage(const Json& message, const std::string& where, JsonWriter& writer);

// The variables of the template, as a JSON object: `chat_template_kwargs` and the tools.
Result<std::string> ReadTemplateVariables(const Json& body, const Json& tools);

}  // namespace tandem::serve::openai
