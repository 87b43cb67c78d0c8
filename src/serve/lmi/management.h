// djl-serving's routes that manage models: to list, describe, load, scale and unload them. Loading
// runs on the repository's thread.
#pragma once

#include <vector>

#include "serve/http/router.h"
#include "serve/lmi/model_list.h"
#include "serve/lmi/settings.h"

namespace tandem::serve::lmi {

// Those of /models, /workflows and /adapters, by prefix. `settings` outlive the routes.
std::vector<Route> ModelRoutes(const Host& host, const Settings& settings);
std::vector<Route> WorkflowRoutes(const Host& host, const Settings& settings);
std::vector<Route> AdapterRoutes();
// POST /server/logging.
Route LoggingRoute();

}  // namespace tandem::serve::lmi
