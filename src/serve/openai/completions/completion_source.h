// The messages of a call of /v1/chat/completions or /v1/completions: its response, or its chunks.
#pragma once

#include <memory>

#include "serve/generate_call.h"
#include "serve/http/call_reply.h"
#include "serve/openai/completions/answer_plan.h"
#include "serve/openai/completions/response.h"
#include "serve/openai/request/request.h"

namespace tandem::serve::openai {

std::unique_ptr<MessageSource> MakeCompletionSource(const Call& call, ResponseHeader header,
                                                    AnswerPlan plan,
                                                    std::unique_ptr<GenerateCall> generate);

}  // namespace tandem::serve::openai
