// UrlLoader: loads models for djl-serving's management routes, an engine for each, by their
// address. Owned by `tandem serve`; outlives its server.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "apps/lmi/serving.h"
#include "apps/server/model_repository.h"
#include "base/mutex.h"
#include "serve/kserve/repository.h"
#include "serve/lmi/model_loader.h"
#include "serve/model_registry.h"

namespace tandem::apps {

class UrlLoader final : public serve::lmi::ModelLoader {
 public:
  // The command line's values with those of a model's address: at least its target, which is
  // fetched if need be. NOT_FOUND where there is nothing.
  using ReadUrl =
      std::function<Result<UrlModel>(const OptionValues& values, const std::string& url)>;

  // `engines` and `models` get what is loaded, and outlive the loader.
  UrlLoader(const OptionValues& values, ModelRepository::OpenEngine open,
            serve::ModelRegistry& engines, serve::kserve::Repository& models, ReadUrl read);

  // What the start has loaded: `name` came from `url`, and has settings of its own or none.
  void NoteStart(std::string name, std::string url,
                 std::optional<serve::lmi::ModelSettings> settings = {});

  Status Load(const serve::lmi::LoadRequest& request) override;
  // INVALID_ARGUMENT for a model of the start, NOT_FOUND for a name that is not served.
  Status Unload(std::string_view name) override;
  serve::lmi::ModelOrigin OriginOf(std::string_view name) const override;

 private:
  // The settings that the model has of its own.
  Result<std::optional<serve::lmi::ModelSettings>> Open(const serve::lmi::LoadRequest& request);

  const OptionValues values_;
  const ModelRepository::OpenEngine open_;
  serve::ModelRegistry& engines_;
  serve::kserve::Repository& models_;
  const ReadUrl read_;
  mutable Mutex mutex_;
  std::map<std::string, serve::lmi::ModelOrigin, std::less<>> origins_ TANDEM_GUARDED_BY(mutex_);
};

// The address becomes the target, without a draft: a folder, an archive, or what is downloaded as
// for the command line.
Result<UrlModel> TargetOfUrl(const OptionValues& values, const std::string& url);

}  // namespace tandem::apps
