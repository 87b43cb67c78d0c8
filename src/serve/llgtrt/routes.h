// The routes that llgtrt has beside OpenAI's: a session of llguidance (`/v1/run`, `/guidance`) and
// its health checks. They are part of the OpenAI front end, whose error format they share.
#pragma once

#include <vector>

#include "serve/http/router.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::serve::llgtrt {

// Both arguments outlive the router.
std::vector<Route> Routes(const ModelRegistry& engines, const kserve::Repository& models);

}  // namespace tandem::serve::llgtrt
