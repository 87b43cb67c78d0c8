// The fields of both routes that say how tokens are drawn and when they end. Errors stay in the
// reader. Pure functions.
#pragma once

#include "serve/field_reader.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// Sampling, biases, seed, ends, lengths and priority.
void ReadGenerationFields(FieldReader& fields, TextRequest& text);
// The member `stop_token_ids` alone.
void ReadStopTokenIds(FieldReader& fields, TextRequest& text);

}  // namespace tandem::serve::openai
