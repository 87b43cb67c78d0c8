// ServedEngine: a session's engine with its text side, as servers call it. Shared by the calls that
// run; it ends with the last of them, on the reaper's thread.
#pragma once

#include <functional>
#include <memory>

#include "apps/models/session.h"
#include "apps/models/tokenizers.h"
#include "base/reaper.h"
#include "serve/engine_client.h"
#include "serve/generate_service.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::apps {

struct ServedEngine {
  std::unique_ptr<Session> session;
  TextModel text;
  std::unique_ptr<serve::EngineClient> client;
  std::unique_ptr<serve::GenerateService> service;  // last: it uses the other members
};

// Opens a session and starts its engine, after the engines that were given up before have ended:
// their memory may be needed. `reaper`, in which it ends, and `metrics` outlive the engine;
// `shared` as OpenSession; of a process that follows another one only the session is there.
Result<std::shared_ptr<ServedEngine>> OpenServedEngine(
    const OptionValues& values, Console& console, const serve::ServiceOptions& options,
    const TextSettings& text, serve::Metrics& metrics,
    const std::function<void(EngineOptions&)>& adjust, Reaper& reaper,
    SharedResources* shared = nullptr);

// The engine's service, which keeps the engine alive.
std::shared_ptr<serve::GenerateService> ServiceOf(const std::shared_ptr<ServedEngine>& engine);

// Serves the engine under this name alone, as a model that takes and gives text. Errors are those
// of a name that is taken.
Status AddTextModel(const std::string& name, const std::shared_ptr<ServedEngine>& engine,
                    serve::ModelRegistry& engines, serve::kserve::Repository& models);

}  // namespace tandem::apps
