// The models and engines of one server: one pair under the names that clients know, or a model
// repository. Main thread.
#pragma once

#include <memory>
#include <vector>

#include "apps/lmi/serving.h"
#include "apps/server/model_repository.h"
#include "apps/server/serve_options.h"
#include "apps/server/served_engine.h"
#include "apps/server/url_loader.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::apps {

struct ServedModels {
  explicit ServedModels(const Clock& clock) : models(clock) {}

  std::vector<std::shared_ptr<ServedEngine>> engines;  // opened at start
  serve::ModelRegistry registry;
  std::unique_ptr<ModelRepository> repository;  // null: the models were named one by one
  std::unique_ptr<UrlLoader> loader;            // of those that are loaded by their address
  serve::kserve::Repository models;             // after it: a load that still runs uses it
};

// Opens what the options name, with `open` for each engine. `served` is empty, and outlives what is
// opened.
Status OpenModels(const ServeOptions& options, const ModelRepository::OpenEngine& open,
                  const OptionValues& values, ServedModels& served);

// The same for an LMI container's models. The first one also has the names that clients of the
// inference protocol use. `lmi` outlives what is opened, for models that are added later.
Status OpenLmiModels(const LmiServing& lmi, const LmiAccess& access, const ServeOptions& options,
                     const ModelRepository::OpenEngine& open, const OptionValues& values,
                     ServedModels& served);

}  // namespace tandem::apps
