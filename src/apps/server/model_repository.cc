#include "apps/server/model_repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/output_folder.h"
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
    if (error || written < time || !HasTokenizer(entry->path())) continue;
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
      launch_(LaunchFrom(values)),
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
  listed_ = {names.begin(), names.end()};
  std::erase_if(known_, [this](const auto& row) {
    return !loaded_.contains(row.first) && !listed_.contains(row.first);
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
  return first;
}

// What is loaded keeps the links that it was loaded with; the others join those models, and
// `wanted`, which is about to be loaded, where there is a choice.
void ModelRepository::Link(const std::string& wanted) {
  std::set<std::string> preferred = {wanted};
  for (const auto& [name, links] : loaded_) preferred.insert(name);
  links_ = LinkModels(known_, preferred);
  for (const auto& [name, links] : loaded_) links_.insert_or_assign(name, links);
}

Status ModelRepository::LoadAll() {
  Status first = ReadAll();
  if (known_.empty()) return first;
  for (const std::string& warning : LaunchWarnings(launch_, known_)) LogWarning("{}", warning);
  std::vector<std::string> names = options_.load_models;
  const bool all = !options_.is_explicit || std::ranges::count(names, "*") > 0;
  if (all) {
    names.clear();
    for (const auto& [name, model] : known_) names.push_back(name);
  } else {
    first = {};  // files of models that are not to be loaded may be broken
  }
  for (const std::string& name : names) {
    Link(name);
    const Status status = LoadWithParts(name);
    if (!status.ok() && first.ok()) first = status;
  }
  if (first.ok() || !options_.exit_on_error) return {};
  return first.Annotate("failed to load all models");
}

Status ModelRepository::Load(std::string_view name, std::string_view config) {
  const std::string model(name);
  std::optional<FolderModel> replaced;
  if (loaded_.contains(model)) {
    // A configuration that cannot be read leaves everything as it is.
    TANDEM_RETURN_IF_ERROR(serve::kserve::ReadModel(options_.folder, model, config)
                               .status()
                               .Annotate(fmt::format("failed to load '{}'", model)));
    replaced = *Known(model);
    const std::map<std::string, ModelLinks> before = loaded_;
    TANDEM_RETURN_IF_ERROR(Unload(model, /*dependents=*/false));
    for (const auto& [door, links] : before) {
      if (door != model && !loaded_.contains(door)) ended_with_[model].insert(door);
    }
  }
  // Others may be broken: this one and its parts are what counts.
  [[maybe_unused]] const Status others = ReadAll();
  if (!config.empty()) TANDEM_RETURN_IF_ERROR(Read(model, config));
  if (Known(model) == nullptr) {
    return InvalidArgument(
        fmt::format("failed to load '{}', failed to poll from model repository", model));
  }
  Status status = LoadWithDoors(model);
  if (status.ok()) return status;
  status = status.Annotate(fmt::format("failed to load '{}'", model));
  // There is no room for the old one beside the new one, so it comes back only now.
  if (replaced) {
    known_.insert_or_assign(model, *std::move(replaced));
    failed_.clear();
    if (LoadWithDoors(model).ok()) {
      return {status.code(), status.message() + "; it serves as it was before"};
    }
  }
  // A name that a request made up is nobody's failure.
  if (!listed_.contains(model)) {
    known_.erase(model);
    models_.Forget(model);
  }
  return status;
}

// The model, and the chains that ended when it was to be replaced.
Status ModelRepository::LoadWithDoors(const std::string& model) {
  Link(model);
  Status status = LoadWithParts(model);
  const auto doors = ended_with_.find(model);
  if (doors == ended_with_.end()) return status;
  for (const std::string& door : doors->second) {
    if (status.ok() && Known(door) != nullptr) status = LoadWithParts(door);
  }
  if (status.ok()) ended_with_.erase(doors);
  return status;
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
    failed_.insert_or_assign(name, status);
    // Names that nobody has are not kept.
    const bool is_known = Known(name) != nullptr || listed_.contains(name);
    if (is_known) models_.SetState(name, ModelState::kFailed, status.message());
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
  loaded_.insert_or_assign(name, links);
  return {};
}

// The folder of the tokenizer that is named for an engine; empty: the engine's own.
std::string ModelRepository::TokenizerOf(const ModelLinks& engine) const {
  for (const std::string& note : engine.notes) LogWarning("{}", note);
  const std::string& named = engine.tokenizer;
  if (named.empty() || HasTokenizer(named)) return named;
  if (fs::path snapshot = HubSnapshot(named); !snapshot.empty()) return snapshot;
  LogWarning(
      "{}: tokenizer_dir \"{}\", of it or of its stages, {}: the engine's own tokenizer is taken",
      engine.engine, named,
      fs::path(named).is_absolute() ? "has no tokenizer"
                                    : "has no tokenizer and is not in the hub's local cache");
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
  TANDEM_RETURN_IF_ERROR(PlaceRanks(model, values));
  return values;
}

// As many ranks as there are gpu_device_ids, on those GPUs, and the draft on its own ones. Without
// GPUs only the number of the target's counts. The command line goes over all of it.
Status ModelRepository::PlaceRanks(const FolderModel& model, OptionValues& values) const {
  const OptionSpec& device = BackendOptionRows().RowOf<&BackendOptions::device>();
  const OptionSpec& ranks = RankOptionRows().RowOf<&RankOptions::target>();
  const std::string where = model.name + ": parameter gpu_device_ids";
  // In a world of several models its size says nothing about one of them.
  if (launch_.is_orchestrated) {
    const OptionSpec& world = RankOptionRows().RowOf<&RankOptions::world_size>();
    TANDEM_RETURN_IF_ERROR(values.Set(world.name, {"1"}, where));
  }
  const std::vector<int32_t>& ids = model.parameters.gpu_device_ids;
  if (ids.empty()) return {};
  const BackendOptions backend = BackendOptionRows().Read(values_);
  const bool on_cpu = IsOnCpu(backend);
  if (on_cpu ? backend.device.find(',') != std::string::npos : values_.IsSet(device)) return {};
  const bool counts = !values_.IsSet(ranks);
  if (counts && ids.size() == 1) TANDEM_RETURN_IF_ERROR(values.Set(ranks.name, {"1"}, where));
  if (on_cpu) {
    return counts ? values.Set(device.name, {CpuList(ids.size())}, where) : Status();
  }
  TANDEM_ASSIGN_OR_RETURN(std::string gpus, GpuList(ids, ops::NumCudaDevices()));
  const bool as_many = counts || RankOptionRows().Read(values_).target == std::ssize(ids);
  if (!as_many) gpus = gpus.substr(0, gpus.find(','));
  TANDEM_RETURN_IF_ERROR(values.Set(device.name, {gpus}, where));
  const std::string& draft = links_.at(model.name).draft;
  const OptionSpec& draft_device = RankOptionRows().RowOf<&RankOptions::draft_device>();
  if (draft.empty() || values_.IsSet(draft_device)) return {};
  Result<std::string> of_draft = DraftGpuList(model, *Known(draft), ops::NumCudaDevices());
  if (of_draft.ok() && !of_draft->empty() && !as_many) {
    of_draft = InvalidArgument(fmt::format(
        "{}: gpu_device_ids do not count beside --{} of the command line", draft, ranks.name));
  }
  if (!of_draft.ok()) {
    LogWarning("{}; where it drafts for {} it runs beside it", of_draft.status().message(),
               model.name);
    return {};
  }
  return of_draft->empty() ? Status() : values.Set(draft_device.name, {*of_draft}, where);
}

Status ModelRepository::OpenEngineOf(const FolderModel& model) {
  TANDEM_ASSIGN_OR_RETURN(const OptionValues values, ValuesOf(model));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedEngine> engine, open_(values));
  return engines_.Add(model.name, ServiceOf(engine));
}

// A stage that chains over several engines share goes on with another of them.
bool ModelRepository::MovesToAnotherEngine(const std::string& stage, const std::string& gone) {
  const FolderModel& model = *Known(stage);
  if (RowOf(model.parameters.kind).role != EngineRole::kStage) return false;
  std::set<std::string> stay;
  for (const auto& [name, links] : loaded_) {
    if (name != gone && name != stage && std::ranges::count(links.parts, gone) == 0) {
      stay.insert(name);
    }
  }
  const ModelLinks links = LinkModels(known_, stay).at(stage);
  if (!stay.contains(links.engine)) return false;
  const Result<serve::ModelPtr> engine = engines_.Find(links.engine);
  if (!engine.ok()) return false;
  Result<serve::kserve::InferModelPtr> moved = serve::kserve::MakeModel(model, links, *engine);
  if (!moved.ok()) return false;
  models_.Add(*std::move(moved));
  loaded_.insert_or_assign(stage, links);
  return true;
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
  for (const auto& [other, links] : loaded_) {
    if (other != name && std::ranges::count(links.parts, name) > 0) doors.push_back(other);
  }
  for (const std::string& door : doors) {
    if (!loaded_.contains(door) || MovesToAnotherEngine(door, name)) continue;
    TANDEM_RETURN_IF_ERROR(Unload(door, /*dependents=*/false));
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
