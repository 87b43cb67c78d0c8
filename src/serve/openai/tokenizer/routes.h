// The tokenizer over HTTP, in vLLM's shapes: POST /tokenize and /detokenize, GET /tokenizer_info.
// Texts are tokenized on a thread of these routes, in the order of their arrival.
#pragma once

#include <vector>

#include "serve/http/router.h"
#include "serve/model_registry.h"

namespace tandem::serve::openai {

// `models` outlives the router.
std::vector<Route> TokenizerRoutes(const ModelRegistry& models);

}  // namespace tandem::serve::openai
