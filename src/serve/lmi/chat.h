// Chats and completions in OpenAI's shape, sent to djl-serving's routes: read by the OpenAI code,
// and answered as djl-serving writes them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "serve/http/call_reply.h"
#include "serve/http/message.h"
#include "serve/json.h"
#include "serve/lmi/settings.h"
#include "serve/model_registry.h"
#include "serve/openai/answers/answer_format.h"
#include "serve/openai/answers/call_ids.h"

namespace tandem::serve::lmi {

// A call that has begun.
struct Invocation {
  std::unique_ptr<MessageSource> source;
  ReplyStyle style;                  // without its patience
  std::vector<std::string> ignored;  // members without effect
};

// What the OpenAI code needs besides the request.
struct OpenAiParts {
  openai::AnswerFormatNames formats;
  std::shared_ptr<openai::CallIds> call_ids = std::make_shared<openai::CallIds>();
};

// A chat if the body has `messages`, else a completion. The request gives the answer its id and the
// cache its key. `settings` outlive the call.
Result<Invocation> BeginOpenAiShape(const Json& body, ModelPtr model, const HttpRequest& request,
                                    const Settings& settings, const OpenAiParts& parts,
                                    const std::function<void()>& wake);

}  // namespace tandem::serve::lmi
