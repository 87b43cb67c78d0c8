#include "apps/server/serve_models.h"

#include <utility>

#include "serve/kserve/models/engine_models.h"

namespace tandem::apps {
namespace {

// One pair under the names that clients know.
Status ServePair(const std::string& name, const ServeOptions& options,
                 const ModelRepository::OpenEngine& open, const OptionValues& values,
                 ServedModels& served) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedEngine> engine, open(values));
  TANDEM_RETURN_IF_ERROR(
      served.registry.Add(name, ServiceOf(engine), serve::kserve::TextModelNames()));
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
  served.loader =
      std::make_unique<UrlLoader>(values, open, served.registry, served.models, TargetOfUrl);
  if (!options.model_repo.empty()) return ServeRepository(options, open, values, served);
  const auto& target = ModelOptionRows().RowOf<&ModelOptions::target>();
  served.loader->NoteStart(options.served_model_name, values.Text(target));
  return ServePair(options.served_model_name, options, open, values, served);
}

Status OpenLmiModels(const LmiServing& lmi, const LmiAccess& access, const ServeOptions& options,
                     const ModelRepository::OpenEngine& open, const OptionValues& values,
                     ServedModels& served) {
  served.loader =
      std::make_unique<UrlLoader>(values, open, served.registry, served.models,
                                  [&lmi, access](const OptionValues& base, const std::string& url) {
                                    return lmi.AddedModelValues(url, base, access);
                                  });
  for (size_t i = 0; i < lmi.num_models(); ++i) {
    const OptionSpec* renamed = values.Find("served_model_name");
    const bool is_renamed = i == 0 && renamed != nullptr && values.IsSet(*renamed);
    const std::string& name = is_renamed ? options.served_model_name : lmi.name(i);
    Result<UrlModel> own = lmi.ModelValues(i, values, access);
    if (!own.ok()) return own.status().Annotate("model " + name);
    served.loader->NoteStart(name, lmi.url(i), own->http);
    if (i == 0) {
      TANDEM_RETURN_IF_ERROR(ServePair(name, options, open, own->values, served));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedEngine> engine, open(own->values));
    TANDEM_RETURN_IF_ERROR(AddTextModel(name, engine, served.registry, served.models));
  }
  return {};
}

}  // namespace tandem::apps
