// Answers in OpenAI's shape: whole responses and stream chunks, as JSON text. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/openai/request.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// What every response and chunk of one call says.
struct ResponseHeader {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;  // "chatcmpl-…" or "cmpl-…"
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

// One answer, complete or as far as it has come.
struct Choice {
  int64_t index = 0;
  std::string text;
  std::vector<TokenPiece> pieces;  // for log-probabilities
  size_t text_offset = 0;          // of the first piece, in characters of the choice's whole text
  TextFinish finish = TextFinish::kNone;
};

// Sums over prompts and choices.
struct CallUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t accepted_tokens = 0;  // draft tokens that held
  int64_t rejected_tokens = 0;
  uint64_t seed = 0;  // of the first prompt

  // `is_first`: of the request's choices; the prompt is counted once.
  void Add(const Usage& usage, bool is_first);
};

std::string FormatResponse(const ResponseHeader& header, const std::vector<Choice>& choices,
                           const CallUsage& usage, bool logprobs, const TextCodec& codec);

// A stream chunk: text of one choice, or its end, or (without a choice) the figures.
struct ChunkOptions {
  bool is_first = false;  // of its choice: carries the role
  bool logprobs = false;
  const CallUsage* usage = nullptr;  // shown when set
  bool null_usage = false;           // "usage": null, as clients of include_usage expect
};
std::string FormatChunk(const ResponseHeader& header, const Choice* choice,
                        const ChunkOptions& options, const TextCodec& codec);

std::string FormatModels(const std::string& model, int64_t created, int32_t max_seq_len);
std::string FormatModel(const std::string& model, int64_t created, int32_t max_seq_len);

}  // namespace tandem::serve::openai
