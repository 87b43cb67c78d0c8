#include "apps/model_repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "ops/backend.h"
#include "serve/kserve/models/engine_models.h"

namespace tandem::apps {
namespace {

using serve::kserve::EngineRole;
using serve::kserve::FolderModel;
using serve::kserve::ModelState;
namespace fs = std::filesystem;

// The newest snapshot of a hub's model in the local cache, as its own programs lay it out; empty
// when it is not there.
fs::path HubSnapshot(const std::string& id) {
  const char* home = std::getenv("HF_HOME");
  const char* user = std::getenv("HOME");
  const fs::path cache = home != nullptr
                             ? fs::path(home)
                             : fs::path(user == nullptr ? "" : user) / ".cache/huggingface";
  std::string folder = "models--" + id;
  for (size_t at = 0; (at = folder.find('/', at)) != std::string::npos;)
    folder.replace(at, 1, "--");
  const fs::path snapshots = cache / "hub" / folder / "snapshots";
  std::error_code error;
  fs::path newest;
  fs::file_time_type time = fs::file_time_type::min();
  for (fs::directory_iterator entry(snapshots, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::file_time_type written = entry->last_write_time(error);
    if (error || written < time || !NameExists(entry->path() / "tokenizer.json")) continue;
    newest = entry->path();
    time = written;
  }
  return newest;
}

// The error with the model's name in front, unless it begins with it.
Status Named(const Status& status, const std::string& model) {
  return status.message().starts_with(model) ? status : status.Annotate(model);
}

}  // namespace

ModelRepository::ModelRepository(RepositoryOptions options, const OptionValues& values,
                                 OpenEngine open, serve::ModelRegistry& engines,
                                 serve::kserve::Repository& models)
    : options_(std::move(options)),
      values_(values),
      open_(std::move(open)),
      engines_(engines),
      models_(models) {}

const FolderModel* ModelRepository::Known(const std::string& name) const {
  const auto found = known_.find(name);
  return found == known_.end() ? nullptr : &found->second;
}

Status ModelRepository::Read(const std::string& name, std::string_view config) {
  Result<FolderModel> model = serve::kserve::ReadModel(options_.folder, name, config);
  if (!model.ok()) {
    // Names that requests make up are not kept. A file that is broken is nobody's failure until
    // its model is to be loaded.
    const bool is_listed = config.empty() || Known(name) != nullptr;
    const ModelState state = options_.is_explicit ? ModelState::kUnavailable : ModelState::kFailed;
    const Status status = Named(model.status(), name);
    if (is_listed) {
      if (!options_.is_explicit) LogError("{}", status.message());
      models_.SetState(name, state, status.message());
      failed_.insert_or_assign(name, status);
    }
    return status;
  }
  if (!model->defaults.empty()) LogInfo("{}", model->defaults);
  for (const std::string& note : model->notes) LogWarning("{}", note);
  known_.insert_or_assign(name, *std::move(model));
  return {};
}

// Every configuration: what a model is part of stands in others.
Status ModelRepository::ReadAll() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          serve::kserve::ListModels(options_.folder));
  if (names.empty()) {
    return NotFound(
        fmt::format("{}: no folder in it has a config.pbtxt", options_.folder.string()));
  }
  // What a request configured, and is not loaded any more, says nothing about the others.
  std::erase_if(known_, [&](const auto& row) {
    return !loaded_.contains(row.first) && std::ranges::count(names, row.first) == 0;
  });
  Status first;
  failed_.clear();
  for (const std::string& name : names) {
    if (loaded_.contains(name)) continue;
    const Status status = Read(name, {});
    if (!status.ok() && first.ok()) first = status;
    // Before the first time that it is asked for it is listed, too.
    if (status.ok() && options_.is_explicit && !models_.Has(name)) {
      models_.SetState(name, ModelState::kUnavailable, "");
    }
  }
  links_ = LinkModels(known_);
  return first;
}

Status ModelRepository::LoadAll() {
  Status first = ReadAll();
  if (known_.empty()) return first;
  std::vector<std::string> names = options_.load_models;
  const bool all = !options_.is_explicit || std::ranges::count(names, "*") > 0;
  if (all) {
    names.clear();
    for (const auto& [name, model] : known_) names.push_back(name);
  } else {
    first = {};  // files of models that are not to be loaded may be broken
  }
  for (const std::string& name : names) {
    const Status status = LoadWithParts(name);
    if (!status.ok() && first.ok()) first = status;
  }
  if (first.ok() || !options_.exit_on_error) return {};
  return first.Annotate("failed to load all models");
}

Status ModelRepository::Load(std::string_view name, std::string_view config) {
  const std::string model(name);
  std::vector<std::string> doors;
  if (loaded_.contains(model)) {
    // A configuration that cannot be read leaves everything as it is.
    TANDEM_RETURN_IF_ERROR(serve::kserve::ReadModel(options_.folder, model, config)
                               .status()
                               .Annotate(fmt::format("failed to load '{}'", model)));
    const std::set<std::string> before = loaded_;
    TANDEM_RETURN_IF_ERROR(Unload(model, /*dependents=*/false));
    std::ranges::set_difference(before, loaded_, std::back_inserter(doors));
  }
  // Others may be broken: this one and its parts are what counts.
  [[maybe_unused]] const Status others = ReadAll();
  if (!config.empty()) {
    TANDEM_RETURN_IF_ERROR(Read(model, config));
    links_ = LinkModels(known_);
  }
  if (Known(model) == nullptr) {
    return InvalidArgument(
        fmt::format("failed to load '{}', failed to poll from model repository", model));
  }
  Status status = LoadWithParts(model);
  // The chains that ended with it.
  for (const std::string& door : doors) {
    if (status.ok()) status = LoadWithParts(door);
  }
  return status.ok() ? status : status.Annotate(fmt::format("failed to load '{}'", model));
}

// A failure is tried, and logged, once: the models that need the one that failed have its error.
Status ModelRepository::LoadWithParts(const std::string& name) {
  if (loaded_.contains(name)) return {};
  const auto failed = failed_.find(name);
  Status status = failed == failed_.end() ? Status() : failed->second;
  if (status.ok() && Known(name) == nullptr) {
    status =
        NotFound(fmt::format("{}: there is no such model in {}", name, options_.folder.string()));
    LogError("{}", status.message());
  }
  if (status.ok() && !loading_.insert(name).second) {
    return InvalidArgument(fmt::format("{}: it is part of itself", name));
  }
  if (status.ok()) {
    models_.SetState(name, ModelState::kLoading, "");
    for (const std::string& part : links_.at(name).parts) {
      if (status.ok() && part != name) status = LoadWithParts(part);
    }
    if (status.ok()) {
      status = Named(LoadModel(name), name);
      if (!status.ok()) LogError("{}", status.message());
    }
    loading_.erase(name);
  }
  if (!status.ok()) {
    models_.SetState(name, ModelState::kFailed, status.message());
    failed_.insert_or_assign(name, status);
  }
  return status;
}

Status ModelRepository::LoadModel(const std::string& name) {
  const FolderModel& model = *Known(name);
  const ModelLinks& links = links_.at(name);
  const EngineRole role = RowOf(model.parameters.kind).role;
  if (role == EngineRole::kEngine) TANDEM_RETURN_IF_ERROR(OpenEngineOf(model));
  serve::ModelPtr engine;
  if (!links.engine.empty()) {
    TANDEM_ASSIGN_OR_RETURN(engine, engines_.Find(links.engine));
  }
  TANDEM_ASSIGN_OR_RETURN(serve::kserve::InferModelPtr served,
                          serve::kserve::MakeModel(model, links, std::move(engine)));
  if (role == EngineRole::kText) {
    TANDEM_RETURN_IF_ERROR(engines_.AddAlias(links.engine, name));
  }
  models_.Add(std::move(served));
  loaded_.insert(name);
  return {};
}

// The folder of the tokenizer that is named for an engine; empty: the engine's own.
std::string ModelRepository::TokenizerOf(const ModelLinks& engine) const {
  for (const std::string& note : engine.notes) LogWarning("{}", note);
  const std::string& named = engine.tokenizer;
  if (named.empty() || NameExists(fs::path(named) / "tokenizer.json")) return named;
  if (fs::path snapshot = HubSnapshot(named); !snapshot.empty()) return snapshot;
  LogWarning(
      "{}: tokenizer_dir \"{}\", of it or of its stages, {}: the engine's own tokenizer is taken",
      engine.engine, named,
      fs::path(named).is_absolute() ? "has no tokenizer.json"
                                    : "has no tokenizer.json and is not in the hub's local cache");
  return {};
}

// A path that does not exist is a configuration's fault, and named as one.
Status ModelRepository::CheckEngineDir(const FolderModel& model) const {
  const std::string& folder = model.parameters.engine_dir;
  if (folder.empty() || NameExists(folder)) return {};
  return NotFound(fmt::format(
      "gpt_model_path in {}/config.pbtxt (engine_dir of the template) is {}, which does not exist",
      model.name, folder));
}

Result<OptionValues> ModelRepository::ValuesOf(const FolderModel& model) const {
  const ModelLinks& links = links_.at(model.name);
  OptionValues values = values_;
  const auto set = [&](std::string_view option, const std::string& value) -> Status {
    const OptionSpec* row = values.Find(option);
    TANDEM_CHECK(row != nullptr, "a parameter sets an option that there is not");
    if (value.empty() || values_.IsSet(*row)) return {};
    return values.Set(option, {value}, fmt::format("{}: parameter for {}", model.name, option));
  };
  for (const auto& [option, value] : model.parameters.engine_options) {
    TANDEM_RETURN_IF_ERROR(set(option, value));
  }
  TANDEM_RETURN_IF_ERROR(CheckEngineDir(model));
  TANDEM_RETURN_IF_ERROR(
      set(ModelOptionRows().RowOf<&ModelOptions::target>().name, model.parameters.engine_dir));
  if (const std::string& draft = links.draft; !draft.empty()) {
    const FolderModel* draft_model = Known(draft);
    if (draft_model == nullptr) {
      return NotFound(fmt::format("its draft \"{}\" is no model of the repository", draft));
    }
    TANDEM_RETURN_IF_ERROR(CheckEngineDir(*draft_model).Annotate("its draft"));
    TANDEM_RETURN_IF_ERROR(set(ModelOptionRows().RowOf<&ModelOptions::draft>().name,
                               draft_model->parameters.engine_dir));
  }
  TANDEM_RETURN_IF_ERROR(
      set(ModelOptionRows().RowOf<&ModelOptions::tokenizer_dir>().name, TokenizerOf(links)));
  // Without GPUs it is a number without a meaning.
  if (const auto gpu = model.parameters.gpu_device_id; gpu && ops::NumCudaDevices() > 0) {
    TANDEM_RETURN_IF_ERROR(set(BackendOptionRows().RowOf<&BackendOptions::device>().name,
                               fmt::format("cuda:{}", *gpu)));
  }
  return values;
}

Status ModelRepository::OpenEngineOf(const FolderModel& model) {
  TANDEM_ASSIGN_OR_RETURN(const OptionValues values, ValuesOf(model));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedEngine> engine, open_(values));
  return engines_.Add(model.name, ServiceOf(engine));
}

Status ModelRepository::Unload(std::string_view unloaded, bool dependents) {
  const std::string name(unloaded);
  if (!loaded_.contains(name)) {
    if (Known(name) != nullptr) {
      models_.SetState(name, ModelState::kUnavailable, "unloaded");  // it may have failed to load
      return {};
    }
    return InvalidArgument(
        fmt::format("failed to unload '{}', versions that are available: none", name));
  }
  // First the doors that lead to it, so that no request finds half of a chain.
  std::vector<std::string> doors;
  for (const std::string& other : loaded_) {
    const std::vector<std::string>& parts = links_.at(other).parts;
    if (other != name && std::ranges::count(parts, name) > 0) doors.push_back(other);
  }
  for (const std::string& door : doors) {
    if (loaded_.contains(door)) TANDEM_RETURN_IF_ERROR(Unload(door, /*dependents=*/false));
  }
  const FolderModel model = *Known(name);
  models_.SetState(name, ModelState::kUnavailable, "unloaded");
  loaded_.erase(name);
  const EngineRole role = RowOf(model.parameters.kind).role;
  if (role == EngineRole::kEngine) TANDEM_RETURN_IF_ERROR(engines_.Remove(name));
  if (role == EngineRole::kText) engines_.RemoveAlias(name);
  if (!dependents) return {};
  for (const std::string& part : model.steps) {
    if (loaded_.contains(part)) TANDEM_RETURN_IF_ERROR(Unload(part, /*dependents=*/true));
  }
  return {};
}

}  // namespace tandem::apps
