// A request's messages → the text of its prompt, as the model's chat template writes it, and where
// it leaves the reasoning of the answer. Pure functions; a refusal is INVALID_ARGUMENT, with the
// field if it is not the messages'.
#pragma once

#include <string_view>

#include "base/status.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve {

struct ChatPrompt {
  ChatText chat;
  ReasoningStart reasoning = ReasoningStart::kUnopened;  // if the request has marks
};

// `text` has messages. Where the answer continues the last message, the prompt ends with it.
Result<ChatPrompt> RenderPrompt(const TextRequest& text, const TextCodec& codec);

// Of a prompt that ends with `text`: whatever stands before, its last mark opens or closes the
// reasoning only where it is the end.
ReasoningStart FindReasoningStart(const ReasoningMarks& marks, std::string_view text);

}  // namespace tandem::serve
