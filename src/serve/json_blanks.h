// Blanks between the parts of a JSON answer: a grammar of JSON allows them unless it forbids them.
// A pure function.
#pragma once

#include "serve/text_request.h"

namespace tandem::serve {

// Whether the grammar is one of JSON.
bool IsJsonGrammar(const OutputGrammar& grammar);

// Makes a grammar of JSON one of JSON without blanks between the parts. False, and nothing is
// changed, if the schema sets llguidance's options itself. What is no schema stays, for it is
// refused when it is compiled.
bool ForbidBlanks(OutputGrammar& grammar);

}  // namespace tandem::serve
