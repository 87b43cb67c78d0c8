// Answers in OpenAI's format: whole responses and stream chunks, as JSON text. Pure functions, but
// for the ids of calls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/generate_call.h"
#include "serve/json.h"
#include "serve/model_registry.h"
#include "serve/openai/completions/answer_plan.h"
#include "serve/openai/request/request.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// Whose words tell how an answer ended.
enum class EndWords : uint8_t {
  kOpenAi,  // stop, length
  kDjl,     // eos_token, length; a chunk's log-probabilities stand in a list, as djl-serving has it
};

// The parts common to every response and chunk of one call.
struct ResponseHeader {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;  // "chatcmpl-…" or "cmpl-…"
  std::string model;
  int64_t created = 0;  // seconds since 1970
  EndWords words = EndWords::kOpenAi;
};

// News of one answer in a stream.
struct Choice {
  int64_t index = 0;
  std::string text;
  std::span<const TokenPiece> pieces;  // for log-probabilities
  size_t text_offset = 0;          // of the first piece, in characters of the answer's whole text
  std::optional<AnswerPart> part;  // of a chat, instead of `text`
  bool ends_with_calls = false;    // with `finish`: as EndsWithCalls
  TextFinish finish = TextFinish::kNone;
};

// Whether the reason of a whole answer's end is its calls. As OpenAI has it, "stop" stays the
// reason where the client named the function.
bool EndsWithCalls(const CallableTools& tools, int32_t num_calls);

// A token with its log-probability and the alternatives: an object in OpenAI's form for chats.
void WriteTokenLogprob(const TextCodec& codec, const TokenPiece& piece, JsonWriter& writer);

// A token as a string: tokens that are parts of a character ("bytes:\\xc3") stay distinct.
std::string TokenName(const TextCodec& codec, int32_t token);

// Of an answer; one without tokens is the worst.
double MeanLogprob(std::span<const TokenPiece> pieces);

// The choices that the client gets, `wanted` of the `generated` ones of each prompt: those whose
// tokens have the highest mean log-probability, best first; all of them in their order if as many
// are wanted.
std::vector<const TextChoice*> BestChoices(const std::vector<TextChoice>& answers, size_t generated,
                                           size_t wanted);

std::string FormatResponse(const ResponseHeader& header,
                           const std::vector<const TextChoice*>& answers, const CallUsage& usage,
                           bool logprobs, const Echo& echo, const TextCodec& codec,
                           const AnswerPlan& plan);

// A stream chunk: text of one choice, or its end, or (without a choice) the usage figures.
struct ChunkOptions {
  bool is_first = false;  // first chunk of its choice: carries the role
  bool logprobs = false;
  const CallUsage* usage = nullptr;  // shown when set
  bool null_usage = false;           // "usage": null, as clients of include_usage expect
};
std::string FormatChunk(const ResponseHeader& header, const Choice* choice,
                        const ChunkOptions& options, const TextCodec& codec);

std::string FormatModels(const std::vector<ModelPtr>& models);
std::string FormatModel(const Model& model);
std::string FormatVersion(std::string_view version);

}  // namespace tandem::serve::openai
