#include "apps/serve_models.h"

#include <utility>

#include "serve/kserve/models/engine_models.h"

namespace tandem::apps {
namespace {

// One pair under the names that clients know.
Status ServePair(const ServeOptions& options, const ModelRepository::OpenEngine& open,
                 const OptionValues& values, ServedModels& served) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedEngine> engine, open(values));
  TANDEM_RETURN_IF_ERROR(served.registry.Add(options.served_model_name, ServiceOf(engine),
                                             serve::kserve::TextModelNames()));
  TANDEM_ASSIGN_OR_RETURN(const serve::ModelPtr model, served.registry.Default());
  AddEngineModels(served.models, model, engine->session->engine->options().max_batch_size,
                  options.decoupled);
  return {};
}

Status ServeRepository(const ServeOptions& options, const ModelRepository::OpenEngine& open,
                       const OptionValues& values, ServedModels& served) {
  RepositoryOptions repository;
  repository.folder = options.model_repo;
  repository.is_explicit = options.model_control == ModelControl::kExplicit;
  repository.load_models = options.load_models;
  repository.exit_on_error = options.exit_on_error;
  served.models.SetStrictReadiness(options.strict_readiness);
  served.repository = std::make_unique<ModelRepository>(std::move(repository), values, open,
                                                        served.registry, served.models);
  if (options.model_control == ModelControl::kExplicit) {
    served.models.SetLoader(served.repository.get());
  }
  return served.repository->LoadAll();
}

}  // namespace

Status OpenModels(const ServeOptions& options, const ModelRepository::OpenEngine& open,
                  const OptionValues& values, ServedModels& served) {
  served.loader = std::make_unique<UrlLoader>(values, open, served.registry, served.models);
  if (options.model_repo.empty()) {
    const auto& target = ModelOptionRows().RowOf<&ModelOptions::target>();
    served.loader->NoteStart(options.served_model_name, values.Text(target));
  }
  return options.model_repo.empty() ? ServePair(options, open, values, served)
                                    : ServeRepository(options, open, values, served);
}

}  // namespace tandem::apps
