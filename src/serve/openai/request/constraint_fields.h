// The members of an OpenAI request that say what the answer must look like: response_format with
// the types of OpenAI, llgtrt and others, and the members of vLLM, SGLang and llama.cpp. A pure
// function.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/field_reader.h"
#include "serve/text_request.h"

namespace tandem::serve::openai {

// Null if any answer will do. At most one member may constrain the answer. `text_format`: the
// member of responses, `text.format`; null: none. Errors go to `fields`, and the names of unknown
// members of structured_outputs are appended to `ignored`.
std::shared_ptr<const OutputGrammar> ReadGrammar(FieldReader& fields,
                                                 std::vector<std::string>& ignored,
                                                 const Json* text_format = nullptr);

}  // namespace tandem::serve::openai
