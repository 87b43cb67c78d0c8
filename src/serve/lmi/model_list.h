// The models of a server as djl-serving's routes tell them: the engines under their own names, and
// those that are being loaded or could not be. Pure functions of what they read; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/kserve/repository.h"
#include "serve/lmi/model_loader.h"
#include "serve/lmi/settings.h"
#include "serve/model_registry.h"

namespace tandem::serve::lmi {

// What the routes need to know of the server. All of it outlives them; `loader` may be null.
struct Host {
  const ModelRegistry& engines;
  kserve::Repository& models;
  ModelLoader* loader = nullptr;
};

enum class Health : uint8_t { kHealthy, kUnhealthy, kPending, kFailed };
std::string_view HealthName(Health health);  // Healthy, Unhealthy, PENDING, FAILED

struct ListedModel {
  std::string name;
  ModelOrigin origin;
  Health health = Health::kHealthy;
  ModelPtr model;  // null unless it is loaded
};

// Those of the server, with the model's own where it has some.
Settings SettingsOf(const Host& host, const Settings& server, std::string_view model);

// In the order of names.
std::vector<ListedModel> ListModels(const Host& host);

// The model that a request names, or the only one. INVALID_ARGUMENT without a field where it must
// name one, NOT_FOUND with Reason::kModelNotFound, UNAVAILABLE where the model is known but not
// loaded.
Result<ModelPtr> ResolveModel(const Host& host, const std::string& name,
                              const std::string& version);

// /ping: the status, and the body {"NAME": {"status": "Healthy"}, ...}.
struct PingAnswer {
  int status = 200;
  std::string body;
};
PingAnswer Ping(const Host& host, const Settings& settings, bool too_many_errors);

}  // namespace tandem::serve::lmi
