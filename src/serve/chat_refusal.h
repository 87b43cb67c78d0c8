// Which message of a chat its template refuses, and why: templates say it without either. Pure
// functions.
#pragma once

#include "base/status.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve {

// `refusal` of the messages by the template, with the message that is at fault as its field and
// what to send instead, where some more renderings of a chat that is not long tell; else as it is.
Status ExplainRefusal(const TextRequest& text, const TextCodec& codec,
                      const ChatTemplate::RenderOptions& options, Status refusal);

}  // namespace tandem::serve
