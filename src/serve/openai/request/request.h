// The body of /v1/chat/completions or /v1/completions → text requests. A pure function; errors are
// INVALID_ARGUMENT "field: sentence". Unknown members are named in `ignored`; a known member of a
// wrong type is refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/json.h"
#include "serve/openai/answers/tools.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

enum class Endpoint : uint8_t { kChat, kCompletions };

// What of the prompt comes back with each choice.
struct Echo {
  bool prompt = false;  // its text before the answer's, and its log-probabilities if asked for
  bool answer = true;   // false: no new token was asked for
  int64_t num_prompt_logprobs = -1;  // vLLM's field of that name; -1: none
  bool expanded = false;             // llgtrt's return_expanded_prompt: beside the choices
};

struct Call {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                 // as the client wrote it; may be empty
  std::vector<TextRequest> prompts;  // one for chat
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage figures
  bool continuous_usage = false;  // and in every chunk
  bool logprobs = false;
  ToolRequest tools;  // of a chat
  Echo echo;
  int64_t num_generated = 1;         // choices of each prompt
  int64_t num_choices = 1;           // of them, the best, that the client gets
  std::vector<std::string> ignored;  // members without effect
};

constexpr size_t kMaxIgnored = 16;  // names of members without effect that are told

// A JSON object.
Result<Json> ParseBody(std::string_view text);

Result<Call> ParseCall(Endpoint endpoint, std::string_view body);

}  // namespace tandem::serve::openai
