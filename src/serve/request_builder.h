// BuildRequest: text request + model defaults + limits → engine request, all but its grammar, which
// FollowGrammar adds. A pure function of its arguments (it tokenizes, which may take long for a
// long prompt); every refusal is INVALID_ARGUMENT "field: sentence". No limit on a prompt's bytes
// can decide whether it fits: its tokens are counted, but for a prompt that is far too long only
// those of its beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/request/request.h"
#include "serve/engine_client.h"
#include "serve/generation_defaults.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve {

// Limits of one request besides the engine's; beyond them: INVALID_ARGUMENT with the field.
struct RequestLimits {
  int64_t max_choices = 128;  // and at most the engine's
  size_t max_stop = 16;       // stop strings
  size_t max_bad_words = 128;
  size_t max_word_bytes = 256;  // of a stop word or bad word
  double max_bias = 1e6;        // of a token or word, either way
  // Names of control tokens in the messages of a chat become the tokens; else they are text.
  bool allow_control_tokens = false;
  bool compact_json = false;  // no blanks between the parts of JSON, unless the request allows them
};

// At most `max_words` words of at most `max_bytes` bytes each.
Status CheckWordSizes(std::string_view field, std::span<const std::string> words, size_t max_words,
                      size_t max_bytes);

// The tokens of a prompt's text, however many; but a text that is far too long for the engine, with
// more than twice max_seq_len, is refused without tokenizing all of it.
Result<std::vector<int32_t>> TokenizePrompt(std::string_view field, std::string_view text,
                                            bool add_special_tokens, const TextCodec& codec,
                                            const EngineLimits& engine);

// Each must be one of the model's.
Status CheckTokens(std::string_view field, std::span<const int32_t> tokens, const TextCodec& codec);

// The tokens of the prompt, whichever form it has; at least one unless the tokenizer gives none. Of
// a text of which only the last tokens are kept (keep_prompt_tokens) and fit, those: however long
// it is, only as much of its end is tokenized as they take. `reasoning` gets where a chat's prompt
// leaves it.
Result<std::vector<int32_t>> PromptTokens(const TextRequest& text, const TextCodec& codec,
                                          const RequestLimits& limits, const EngineLimits& engine,
                                          ReasoningStart* reasoning = nullptr);

struct BuiltRequest {
  Request request;
  ReasoningStart reasoning = ReasoningStart::kUnopened;  // where a chat's prompt leaves it
  // What the answer must look like, which `request` does not say yet; null: anything.
  std::shared_ptr<const OutputGrammar> grammar;
};

// `arrived`: arrival time on the engine's clock; the request's timeout starts there.
Result<BuiltRequest> BuildRequest(const TextRequest& text, const TextCodec& codec,
                                  const GenerationDefaults& defaults, const EngineLimits& engine,
                                  const RequestLimits& limits, Nanos arrived);

// Constrains the request to its grammar, if it has one that was compiled lately: true. Then it is
// null, as where there was none. False: it has to be compiled.
Result<bool> FollowKnownGrammar(const TextCodec& codec, BuiltRequest& built);
// The same for any grammar; compiles it, which may take seconds. One that is refused is compiled in
// parts, to name the one at fault, while `is_wanted`.
Status FollowGrammar(const TextCodec& codec, const std::function<bool()>& is_wanted,
                     BuiltRequest& built);

}  // namespace tandem::serve
