// The fields of both routes that say what the answer holds: streaming, log-probabilities, how many
// choices, what of the prompt. Errors stay in the reader. Pure functions.
#pragma once

#include "serve/field_reader.h"
#include "serve/openai/request/request.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// Reads them into the call and into the request of each prompt.
void ReadAnswerFields(FieldReader& fields, Call& call, TextRequest& text);

}  // namespace tandem::serve::openai
