// What a call's answers hold besides text, decided before it begins: how they mark calls and
// reasoning, which tools they may call, and the grammar of calls that follow one. Pure functions.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "serve/openai/answers/answer_format.h"
#include "serve/openai/answers/answer_parser.h"
#include "serve/openai/answers/answer_part.h"
#include "serve/openai/answers/call_ids.h"
#include "serve/openai/request/request.h"
#include "serve/text_codec.h"

namespace tandem::serve::openai {

struct AnswerPlan {
  AnswerFormat format;
  CallableTools tools;
  std::shared_ptr<CallIds> call_ids;

  std::string NewCallId() const { return call_ids->Next(format.tools); }
  AnswerParser NewParser(ReasoningStart start) const;
};

// Gives the call's prompts what the plan needs: the grammar, and the marks in their text. The
// format's start becomes known with the first event of an answer.
// INVALID_ARGUMENT with the field if the tools do not go together with another grammar, or with the
// operator's formats.
Result<AnswerPlan> PlanAnswer(const AnswerFormatNames& names, const TextCodec& codec,
                              std::shared_ptr<CallIds> call_ids, Call& call);

}  // namespace tandem::serve::openai
