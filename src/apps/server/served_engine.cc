#include "apps/server/served_engine.h"

#include <utility>

#include "serve/kserve/models/engine_models.h"

namespace tandem::apps {

Result<std::shared_ptr<ServedEngine>> OpenServedEngine(
    const OptionValues& values, Console& console, const serve::ServiceOptions& options,
    const TextSettings& text, serve::Metrics& metrics,
    const std::function<void(EngineOptions&)>& adjust, Reaper& reaper, SharedResources* shared) {
  reaper.Await();
  auto engine = std::make_shared<ServedEngine>();
  TANDEM_ASSIGN_OR_RETURN(engine->session, OpenSession(values, console, adjust, shared));
  if (engine->session->follows()) return engine;
  TANDEM_ASSIGN_OR_RETURN(engine->text, OpenTextModel(*engine->session, text));
  engine->session->engine->Start();
  engine->client = serve::MakeEngineClient(*engine->session->engine);
  engine->service = std::make_unique<serve::GenerateService>(
      *engine->client, *engine->text.codec, std::move(engine->text.defaults),
      engine->session->clock, options, &metrics);
  return reaper.Own(std::move(engine));
}

std::shared_ptr<serve::GenerateService> ServiceOf(const std::shared_ptr<ServedEngine>& engine) {
  return {engine, engine->service.get()};
}

Status AddTextModel(const std::string& name, const std::shared_ptr<ServedEngine>& engine,
                    serve::ModelRegistry& engines, serve::kserve::Repository& models) {
  TANDEM_RETURN_IF_ERROR(engines.Add(name, ServiceOf(engine)));
  TANDEM_ASSIGN_OR_RETURN(const serve::ModelPtr model, engines.Find(name));
  models.Add(
      serve::kserve::MakeTextModel(model, name, engine->session->engine->options().max_batch_size));
  return {};
}

}  // namespace tandem::apps
