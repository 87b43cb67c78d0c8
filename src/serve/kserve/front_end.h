// The KServe v2 front end with Triton's generate extension: wire ↔ service and nothing more.
#pragma once

#include <functional>

#include "serve/generate_service.h"
#include "serve/http/router.h"

namespace tandem::serve::kserve {

// `service` outlives the router; `live` and `ready` answer the health routes.
FrontEnd MakeFrontEnd(GenerateService& service, size_t body_limit, std::function<bool()> live,
                      const std::function<bool()>& ready);

}  // namespace tandem::serve::kserve
