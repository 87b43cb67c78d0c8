// The OpenAI front end: wire ↔ service and nothing more. It answers paths that no other front end
// knows.
#pragma once

#include <string>

#include "serve/generate_service.h"
#include "serve/http/router.h"

namespace tandem::serve::openai {

// `service` outlives the router. `model` is the name that requests may give, and /v1/models tells.
FrontEnd MakeFrontEnd(GenerateService& service, std::string model, size_t body_limit);

}  // namespace tandem::serve::openai
