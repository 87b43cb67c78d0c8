// What llgtrt's clients may send beside OpenAI's members: `return_expanded_prompt`,
// `include_json_schema_in_prompt`, `llg_log_level`, and those of LoRA, which are refused. Pure
// functions.
#pragma once

#include "base/status.h"
#include "serve/field_reader.h"
#include "serve/json.h"
#include "serve/openai/request/request.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

void ReadLlgtrtFields(FieldReader& fields, Call& call, TextRequest& text);

// Adds the schema of `response_format` to the variables of the chat template, as `json_schema`; or,
// where `include_json_schema_in_prompt` is false, takes the tools out of them. After ReadChat.
Status ShowSchemaInPrompt(const Json& body, TextRequest& text);

}  // namespace tandem::serve::openai
