// The bodies of /tokenize and /detokenize, and what these routes and /tokenizer_info answer. Pure
// functions; errors are INVALID_ARGUMENT "field: sentence".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/engine_client.h"
#include "serve/request_builder.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

struct TokenizeCall {
  std::string model;  // as the client wrote it; may be empty
  TextRequest text;   // a prompt, or messages
  bool return_token_strs = false;
};
Result<TokenizeCall> ParseTokenize(std::string_view body);
// {"count", "max_model_len", "tokens", "token_strs"}. May take long for a long text.
Result<std::string> Tokenize(const TokenizeCall& call, const TextCodec& codec,
                             const RequestLimits& limits, const EngineLimits& engine);

struct DetokenizeCall {
  std::string model;
  std::vector<int32_t> tokens;
};
Result<DetokenizeCall> ParseDetokenize(std::string_view body);
// {"prompt"}: the text with the names of special tokens.
Result<std::string> Detokenize(const DetokenizeCall& call, const TextCodec& codec);

// What the tokenizer's files say, by the names of tokenizer_config.json.
std::string DescribeTokenizer(const TextCodec& codec, const EngineLimits& engine);

}  // namespace tandem::serve::openai
