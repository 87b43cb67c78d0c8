// Grammars of answers that begin inside the model's reasoning, or may. Pure functions.
#pragma once

#include <memory>
#include <string>

#include "serve/openai/answers/answer_format.h"
#include "serve/text_codec.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// A rule of Lark, "thought", for the reasoning up to its end mark, with the mark that begins it or
// (`is_open`) without. It refers to ANY: any text. Marks that are special tokens of the codec are
// those tokens.
std::string ThoughtRule(const ReasoningFormat& format, bool is_open, const TextCodec& codec);

// A mark as a symbol of Lark, and a blank: the token if it is a special one, else its text.
std::string MarkSymbol(std::string_view mark, const TextCodec& codec);

// The client's grammar for an answer whose prompt has opened the reasoning: free text up to the
// mark that ends it, and then what the grammar describes.
std::shared_ptr<const OutputGrammar> AfterReasoning(const OutputGrammar& grammar,
                                                    const ReasoningFormat& format,
                                                    const TextCodec& codec);

}  // namespace tandem::serve::openai
