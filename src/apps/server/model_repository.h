// ModelRepository: a folder of models as Triton's users lay it out, each with its config.pbtxt,
// loaded and served. The models of the kind "tensorrt_llm" are engines, one each. A BLS model's
// draft drafts inside the target's engine; if it is a model of the repository it is an engine of
// its own besides, on the same weights. The other models are text stages and chains over these
// engines, or built-in models that need none. Owned by `tandem serve`; loads and unloads on one
// thread at a time.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "apps/server/served_engine.h"
#include "apps/server/triton_ranks.h"
#include "serve/kserve/models/repository_links.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"

namespace tandem::apps {

struct RepositoryOptions {
  std::filesystem::path folder;
  bool is_explicit = false;              // models are loaded and unloaded by request
  std::vector<std::string> load_models;  // with is_explicit: at start
  bool exit_on_error = true;             // a model that fails at start ends the server
};

class ModelRepository final : public serve::kserve::ModelLoader {
 public:
  // Opens an engine with the command line's values and those of a model's configuration.
  using OpenEngine =
      std::function<Result<std::shared_ptr<ServedEngine>>(const OptionValues& values)>;

  // `values`: of the command line, which takes precedence over the configurations. `engines` and
  // `models` get what is loaded; they outlive the repository.
  ModelRepository(RepositoryOptions options, const OptionValues& values, OpenEngine open,
                  serve::ModelRegistry& engines, serve::kserve::Repository& models);

  // Loads the models that are to be there at start. The first error where errors end the server;
  // else the index tells them.
  Status LoadAll();

  Status Load(std::string_view name, std::string_view config) override;
  Status Unload(std::string_view unloaded, bool dependents) override;

 private:
  using FolderModel = serve::kserve::FolderModel;
  using ModelLinks = serve::kserve::ModelLinks;

  Status Read(const std::string& name, std::string_view config);
  Status ReadAll();
  void Link(const std::string& wanted);
  Status LoadWithDoors(const std::string& model);
  Status LoadWithParts(const std::string& name);
  Status LoadModel(const std::string& name);
  Status OpenEngineOf(const FolderModel& model);
  Status CheckEngineDir(const FolderModel& model) const;
  Result<OptionValues> ValuesOf(const FolderModel& model) const;
  Status PlaceRanks(const FolderModel& model, OptionValues& values) const;
  bool MovesToAnotherEngine(const std::string& stage, const std::string& gone);
  const FolderModel* Known(const std::string& name) const;
  std::string TokenizerOf(const ModelLinks& engine) const;

  const RepositoryOptions options_;
  const OptionValues values_;
  const TritonLaunch launch_;
  const OpenEngine open_;
  serve::ModelRegistry& engines_;
  serve::kserve::Repository& models_;
  serve::kserve::FolderModels known_;         // the folder's models
  std::map<std::string, ModelLinks> links_;   // of the same
  std::set<std::string> listed_;              // those whose folders are there
  std::map<std::string, ModelLinks> loaded_;  // the links that each was loaded with
  // Chains that ended when the model was to be replaced, and come back with it.
  std::map<std::string, std::set<std::string>> ended_with_;
  std::set<std::string> loading_;         // models whose parts are being loaded
  std::map<std::string, Status> failed_;  // since the configurations were read
};

}  // namespace tandem::apps
