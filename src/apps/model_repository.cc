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
#include "runtime/option_rows.h"

namespace tandem::apps {
namespace {

using serve::kserve::FolderModel;
using serve::kserve::ModelKind;
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
    if (is_listed) models_.SetState(name, state, model.status().message());
    return model.status();
  }
  if (!model->defaults.empty()) {
    LogWarning(
        "{}: variables of its template are not filled in and mean defaults; --log_level "
        "info names them",
        name);
  }
  for (const std::string& line : model->defaults) LogInfo("{}", line);
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
  for (const std::string& name : names) {
    if (loaded_.contains(name)) continue;
    const Status status = Read(name, {});
    if (!status.ok() && first.ok()) first = status;
  }
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
  if (!config.empty()) TANDEM_RETURN_IF_ERROR(Read(model, config));
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

// The models that a model cannot be without.
std::vector<std::string> ModelRepository::PartsOf(const FolderModel& model) const {
  switch (model.parameters.kind) {
    case ModelKind::kEnsemble:
      return model.steps;
    case ModelKind::kBls:
    case ModelKind::kPreprocessing:
    case ModelKind::kPostprocessing:
      return {TargetOf(model)};
    default:
      return {};
  }
}

Status ModelRepository::LoadWithParts(const std::string& name) {
  if (loaded_.contains(name)) return {};
  const FolderModel* model = Known(name);
  if (model == nullptr) {
    Status missing =
        NotFound(fmt::format("there is no model \"{}\" in {}", name, options_.folder.string()));
    models_.SetState(name, ModelState::kFailed, missing.message());
    return missing;
  }
  if (!loading_.insert(name).second) {
    return InvalidArgument(fmt::format("{} is part of itself", name));
  }
  models_.SetState(name, ModelState::kLoading, "");
  Status status;
  for (const std::string& part : PartsOf(*model)) {
    if (status.ok() && part != name) {
      status = LoadWithParts(part).Annotate(fmt::format("{} is part of {}", part, name));
    }
  }
  if (status.ok()) status = LoadModel(name);
  loading_.erase(name);
  if (!status.ok()) {
    LogError("{}: {}", name, status.message());
    models_.SetState(name, ModelState::kFailed, status.message());
  }
  return status;
}

Status ModelRepository::LoadModel(const std::string& name) {
  const FolderModel& model = *Known(name);
  const ModelKind kind = model.parameters.kind;
  const std::string target = TargetOf(model);
  if (kind == ModelKind::kTensorrtLlm) TANDEM_RETURN_IF_ERROR(OpenEngineOf(model));
  const FolderModel* engine_model = Known(target);
  const bool is_text = kind == ModelKind::kEnsemble || kind == ModelKind::kBls;
  serve::kserve::ModelContext context;
  if (engine_model != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(context.engine, engines_.Find(target));
    context.exclude_input = engine_model->parameters.exclude_input_in_output;
  }
  // The clients of a pair that run the loop themselves find the answer after the prompt; what the
  // configuration says is for the text models.
  if (!is_text && IsInPair(name)) context.exclude_input = false;
  const FolderModel* tokenizer = StageOf(ModelKind::kPreprocessing, target);
  if (kind == ModelKind::kPreprocessing) tokenizer = &model;
  if (tokenizer != nullptr) context.add_special_tokens = tokenizer->parameters.add_special_tokens;
  const FolderModel* detokenizer = StageOf(ModelKind::kPostprocessing, target);
  if (kind == ModelKind::kPostprocessing) detokenizer = &model;
  if (detokenizer != nullptr) {
    context.skip_special_tokens = detokenizer->parameters.skip_special_tokens;
  }
  // A chain may give several responses when one of its parts may.
  context.is_decoupled = kind == ModelKind::kEnsemble && engine_model != nullptr
                             ? engine_model->parameters.decoupled
                             : model.parameters.decoupled;
  TANDEM_ASSIGN_OR_RETURN(serve::kserve::InferModelPtr served,
                          serve::kserve::MakeModel(model, context));
  if (is_text) TANDEM_RETURN_IF_ERROR(engines_.AddAlias(target, name));
  models_.Add(std::move(served));
  loaded_.insert(name);
  return {};
}

// The engine that a model is, belongs to or speaks for; empty: none.
std::string ModelRepository::TargetOf(const FolderModel& model) const {
  if (model.parameters.kind == ModelKind::kTensorrtLlm) return model.name;
  if (model.parameters.kind == ModelKind::kBls) return model.parameters.target_model;
  if (model.parameters.kind == ModelKind::kOther) return {};  // a built-in model
  const auto is_engine = [this](const std::string& name) {
    const FolderModel* step = Known(name);
    return step != nullptr && step->parameters.kind == ModelKind::kTensorrtLlm;
  };
  const auto step = std::ranges::find_if(model.steps, is_engine);
  if (step != model.steps.end()) return *step;
  // A stage: the engine of a chain that it is part of, else the first one that drafts for no other.
  for (const auto& [name, other] : known_) {
    if (std::ranges::count(other.steps, model.name) == 0) continue;
    const auto engine = std::ranges::find_if(other.steps, is_engine);
    if (engine != other.steps.end()) return *engine;
  }
  std::string first;
  for (const auto& [name, other] : known_) {
    if (!is_engine(name)) continue;
    const bool drafts = std::ranges::any_of(
        known_, [&name](const auto& row) { return row.second.parameters.draft_model == name; });
    if (first.empty() || !drafts) first = name;
    if (!drafts) break;
  }
  return first;
}

// The model that drafts for an engine; empty: none.
std::string ModelRepository::DraftOf(const std::string& target) const {
  for (const auto& [name, model] : known_) {
    const auto& parameters = model.parameters;
    if (parameters.kind != ModelKind::kBls || parameters.target_model != target) continue;
    if (!parameters.draft_model.empty()) return parameters.draft_model;
  }
  return {};
}

bool ModelRepository::IsInPair(const std::string& engine) const {
  return std::ranges::any_of(known_, [&engine](const auto& row) {
    const auto& parameters = row.second.parameters;
    return !parameters.draft_model.empty() &&
           (parameters.draft_model == engine || parameters.target_model == engine);
  });
}

// The stage that is part of a chain over the engine, else any of that kind; null if there is none.
const FolderModel* ModelRepository::StageOf(ModelKind kind, const std::string& engine) const {
  const FolderModel* any = nullptr;
  for (const auto& [name, model] : known_) {
    if (model.parameters.kind != kind) continue;
    if (TargetOf(model) == engine) return &model;
    any = &model;
  }
  return any;
}

// The folder of the tokenizer that the configurations name; empty: the engine's own.
std::string ModelRepository::TokenizerOf(const std::string& engine) const {
  std::string named = Known(engine)->parameters.tokenizer_dir;
  if (const FolderModel* stage = StageOf(ModelKind::kPreprocessing, engine);
      named.empty() && stage != nullptr) {
    named = stage->parameters.tokenizer_dir;
  }
  if (named.empty() || NameExists(fs::path(named) / "tokenizer.json")) return named;
  if (fs::path snapshot = HubSnapshot(named); !snapshot.empty()) return snapshot;
  LogWarning(
      "{}: tokenizer_dir \"{}\" has no tokenizer.json and is not in the hub's local cache: the "
      "engine's own tokenizer is taken",
      engine, named);
  return {};
}

Result<OptionValues> ModelRepository::ValuesOf(const FolderModel& model) const {
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
  TANDEM_RETURN_IF_ERROR(
      set(ModelOptionRows().RowOf<&ModelOptions::target>().name, model.parameters.engine_dir));
  // Whoever allows larger batches expects as many sequences to run.
  if (model.parameters.max_batch_size > EngineOptions().max_batch_size) {
    TANDEM_RETURN_IF_ERROR(set(EngineOptionRows().RowOf<&EngineOptions::max_batch_size>().name,
                               std::to_string(model.parameters.max_batch_size)));
  }
  if (const std::string draft = DraftOf(model.name); !draft.empty()) {
    const FolderModel* draft_model = Known(draft);
    if (draft_model == nullptr) {
      return NotFound(fmt::format("its draft \"{}\" is no model of the repository", draft));
    }
    TANDEM_RETURN_IF_ERROR(set(ModelOptionRows().RowOf<&ModelOptions::draft>().name,
                               draft_model->parameters.engine_dir));
  }
  TANDEM_RETURN_IF_ERROR(
      set(ModelOptionRows().RowOf<&ModelOptions::tokenizer_dir>().name, TokenizerOf(model.name)));
  if (const auto& devices = model.parameters.gpu_device_ids; !devices.empty()) {
    if (devices.front().size() > 1) {
      LogWarning("{}: gpu_device_ids names {} GPUs: the model runs on one, the first", model.name,
                 devices.front().size());
    }
    // Without GPUs they are numbers without a meaning.
    if (ops::NumCudaDevices() > 0) {
      TANDEM_RETURN_IF_ERROR(set(BackendOptionRows().RowOf<&BackendOptions::device>().name,
                                 fmt::format("cuda:{}", devices.front().front())));
    }
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
    const std::vector<std::string> parts = PartsOf(*Known(other));
    if (other != name && std::ranges::count(parts, name) > 0) doors.push_back(other);
  }
  for (const std::string& door : doors) {
    if (loaded_.contains(door)) TANDEM_RETURN_IF_ERROR(Unload(door, /*dependents=*/false));
  }
  const FolderModel model = *Known(name);
  models_.SetState(name, ModelState::kUnavailable, "unloaded");
  loaded_.erase(name);
  if (model.parameters.kind == ModelKind::kTensorrtLlm) {
    TANDEM_RETURN_IF_ERROR(engines_.Remove(name));
  } else if (model.parameters.kind != ModelKind::kPreprocessing &&
             model.parameters.kind != ModelKind::kPostprocessing) {
    engines_.RemoveAlias(name);
  }
  if (!dependents || model.parameters.kind != ModelKind::kEnsemble) return {};
  for (const std::string& part : PartsOf(model)) {
    if (loaded_.contains(part)) TANDEM_RETURN_IF_ERROR(Unload(part, /*dependents=*/true));
  }
  return {};
}

}  // namespace tandem::apps
