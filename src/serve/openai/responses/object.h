// The object of a response, as /v1/responses answers it and as its stream repeats it. Pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/generate_call.h"
#include "serve/json.h"
#include "serve/openai/responses/answer.h"

namespace tandem::serve::openai {

enum class ResponseStatus : uint8_t { kInProgress, kCompleted, kIncomplete, kFailed };
std::string_view ResponseStatusName(ResponseStatus status);

struct ResponsesState {
  ResponseStatus status = ResponseStatus::kInProgress;
  CallUsage usage;               // of a response that has ended
  int64_t reasoning_tokens = 0;  // of usage.completion_tokens
  Status error;                  // of one that failed
};

struct ResponsesHeader {
  std::string id;  // "resp_..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
  Json body;            // of the request; known members come back
};

void WriteResponseObject(const ResponsesHeader& header, const ResponsesState& state,
                         const ResponsesAnswer& answer, JsonWriter& writer);

// What is common to an error in a response and an event of its own: "code" and "message".
void WriteErrorMembers(const Status& error, JsonWriter& writer);

}  // namespace tandem::serve::openai
