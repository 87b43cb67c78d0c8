// The body of /v1/responses → a call. Nothing is stored, so whatever refers to an earlier response
// is refused. A pure function; errors are INVALID_ARGUMENT "field: sentence".
#pragma once

#include <string_view>

#include "base/status.h"
#include "serve/json.h"
#include "serve/openai/request/request.h"

namespace tandem::serve::openai {

struct ResponsesCall {
  // A chat with one choice. Its prompt is streamed whether or not the client asked for a stream.
  Call call;
  Json body;  // the client's: a response repeats some of its members
};

Result<ResponsesCall> ParseResponses(std::string_view body);

}  // namespace tandem::serve::openai
