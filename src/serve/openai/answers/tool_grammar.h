// The grammar of an answer whose calls follow one: reasoning if the model has it, then text or not,
// then calls in the model's own format, whose arguments fit the schemas that the calls follow. A
// pure function.
#pragma once

#include <memory>

#include "serve/openai/answers/answer_format.h"
#include "serve/openai/answers/tools.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// `tools` follow a grammar and `format` has a tool format. `answer`: the form of answers that do
// not call, a JSON object or schema; null: any text. Marks that are special tokens of the codec are
// those tokens in the grammar.
std::shared_ptr<const OutputGrammar> ToolGrammar(const ToolRequest& tools,
                                                 const AnswerFormat& format,
                                                 const OutputGrammar* answer,
                                                 const TextCodec& codec);

}  // namespace tandem::serve::openai
