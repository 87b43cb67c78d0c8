// The OpenAI front end; it only translates between wire and service. It answers paths that no other
// front end knows.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "serve/http/router.h"
#include "serve/model_registry.h"
#include "serve/openai/answers/answer_format.h"
#include "serve/openai/answers/call_ids.h"

namespace tandem::serve::openai {

// `models` outlives the router. `version`: of the program.
FrontEnd MakeFrontEnd(const ModelRegistry& models, size_t body_limit, std::string_view version,
                      const AnswerFormatNames& formats = {},
                      std::shared_ptr<CallIds> call_ids = std::make_shared<CallIds>());

}  // namespace tandem::serve::openai
