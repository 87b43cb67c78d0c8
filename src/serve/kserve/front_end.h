// The KServe v2 front end with Triton's generate extension; it only translates between wire and
// service.
#pragma once

#include <cstddef>

#include "serve/http/router.h"
#include "serve/model_registry.h"

namespace tandem::serve::kserve {

// `models` outlives the router.
FrontEnd MakeFrontEnd(const ModelRegistry& models, size_t body_limit);

}  // namespace tandem::serve::kserve
