// The body of /v1/chat/completions or /v1/completions → text requests. A pure function; errors are
// INVALID_ARGUMENT "field: sentence". Unknown members are ignored; a known member of a wrong type
// is refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/openai/tools.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

enum class Endpoint : uint8_t { kChat, kCompletions };

struct Call {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                 // as the client wrote it; may be empty
  std::vector<TextRequest> prompts;  // one for chat
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage figures
  bool continuous_usage = false;  // and in every chunk
  bool logprobs = false;
  ToolRequest tools;  // of a chat
};

Result<Call> ParseCall(Endpoint endpoint, std::string_view body);

}  // namespace tandem::serve::openai
