// The messages of a call of /v1/responses: its response, or the events of its stream.
#pragma once

#include <memory>
#include <string>

#include "serve/generate_call.h"
#include "serve/http/call_reply.h"
#include "serve/openai/completions/answer_plan.h"
#include "serve/openai/responses/request.h"

namespace tandem::serve::openai {

// `request_id`: the response's id is made of it.
std::unique_ptr<MessageSource> MakeResponsesSource(ResponsesCall call,
                                                   const std::string& request_id, AnswerPlan plan,
                                                   std::unique_ptr<GenerateCall> generate);

}  // namespace tandem::serve::openai
