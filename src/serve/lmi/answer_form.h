// AnswerForm: how the answers of one call of the `inputs` schema are written, whole or streamed. A
// plain value and pure functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/generate_call.h"
#include "serve/http/call_reply.h"
#include "serve/json.h"
#include "serve/lmi/inputs_request.h"
#include "serve/lmi/settings.h"
#include "serve/lmi/tokens.h"
#include "serve/text_codec.h"

namespace tandem::serve::lmi {

struct AnswerForm {
  InputsCall call;  // without its prompts, which run
  Dialect dialect;
  bool has_stops = false;              // the request has ends of its own
  const Settings* settings = nullptr;  // outlive the answer
};

// Takes the prompts out of the call.
AnswerForm FormOf(InputsCall& call, const Settings& settings, std::vector<TextRequest>& prompts);

// The answers of 0.34's handler differ most; with tgi_compat they are those of 0.27.
bool IsAsynchronous(const Dialect& dialect);
// The reason in the release's words.
std::string_view ReasonOf(const AnswerForm& form, TextFinish finish,
                          const std::optional<TokenPiece>& end, const TextCodec& codec);
// What the generated text of an input begins with.
std::string_view PrefixOf(const AnswerForm& form, size_t input);
// "prefill": [tokens of the prompt].
void WritePrefill(const AnswerForm& form, const PromptText* prompt, JsonWriter& writer);
// The tokens of an answer with the one that ended it.
std::vector<TokenPiece> TokensOf(const TextChoice& answer);
// The details of an answer in one object, {"finish_reason", ...}.
struct Detailed {
  const TextChoice& answer;
  size_t input = 0;
  const CallUsage& usage;
};
void WriteWholeDetails(const AnswerForm& form, const Detailed& detailed, const TextCodec& codec,
                       JsonWriter& writer);

std::unique_ptr<MessageSource> MakeWholeSource(AnswerForm form,
                                               std::unique_ptr<GenerateCall> generate);
std::unique_ptr<MessageSource> MakeStreamSource(AnswerForm form,
                                                std::unique_ptr<GenerateCall> generate);

}  // namespace tandem::serve::lmi
