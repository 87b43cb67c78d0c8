#include "apps/lmi/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "apps/cli/file_options.h"
#include "apps/lmi/address.h"
#include "apps/lmi/folder.h"
#include "apps/lmi/model_fit.h"
#include "apps/models/devices.h"
#include "apps/models/local_model.h"
#include "apps/models/session.h"
#include "base/file.h"
#include "base/log.h"
#include "ops/backend.h"
#include "serve/http/listen.h"
#include "sources/model_source.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

struct LmiOptions {
  bool as_lmi = false;
  int generation = 26;
};

const BoundOptions<LmiOptions>& Rows() {
  constexpr std::string_view kGroup = "As SageMaker's LMI containers have them";
  static const BoundOptions<LmiOptions> rows({
      BindOption<LmiOptions, &LmiOptions::as_lmi>(
          {.name = "as_lmi",
           .meaning = "Start as an LMI container does: on port 8080 of all addresses, with the "
                      "models of MODEL or of /opt/ml/model, serving.properties and the "
                      "environment. So without it too where there is no MODEL but SageMaker's "
                      "folder or environment, and if MODEL holds serving.properties, but then on "
                      "127.0.0.1",
           .group = kGroup}),
      BindChoice<LmiOptions, &LmiOptions::generation>(
          {.name = "lmi_generation",
           .meaning = "Release of the container whose defaults and form of answers hold",
           .group = kGroup},
          {{"0.26", 26},
           {"0.27", 27},
           {"0.28", 28},
           {"0.29", 29},
           {"0.30", 30},
           {"0.31", 31},
           {"0.32", 32},
           {"0.33", 33},
           {"0.34", 34},
           {"0.35", 35},
           {"0.36", 36}}),
  });
  return rows;
}

// Whether this start is an LMI container's.
Result<bool> IsAsked(const Environment& environment, const OptionValues& values) {
  const ModelOptions models = ModelOptionRows().Read(values);
  const bool as_lmi = Rows().Read(values).as_lmi;
  const OptionSpec* llgtrt = values.Find("as_llgtrt");
  const OptionSpec* repository = values.Find("model_repo");
  for (const OptionSpec* other : {llgtrt, repository}) {
    if (other == nullptr || !values.IsSet(*other)) continue;
    if (!as_lmi) return false;
    return InvalidArgument(
        fmt::format("--as_lmi: contradicts --{}; leave out one of the two", other->name));
  }
  if (as_lmi) return true;
  if (!models.target.empty()) return IsLmiFolder(models.target);
  if (!models.dummy.empty() || !models.draft.empty()) return false;
  return IsLmiEnvironment(environment);
}

// An archive's folder in its place: there may be a serving.properties in it.
Status UnpackTarget(OptionValues& values) {
  const OptionSpec& row = ModelOptionRows().RowOf<&ModelOptions::target>();
  const fs::path target = ModelOptionRows().Read(values).target;
  if (!IsArchiveName(target.native())) return {};
  TANDEM_ASSIGN_OR_RETURN(const fs::path folder, LocalModel(target, values));
  if (!NameExists(folder / kLmiProperties) && !Rows().Read(values).as_lmi) return {};
  TANDEM_RETURN_IF_ERROR(values.Set(row.name, {folder.string()}, "MODEL"));
  return SetUnlessSet(values, "served_model_name",
                      std::string(ArchiveStem(target.filename().native())), "MODEL");
}

void NameIdleVariables(const Environment& environment) {
  const auto found = environment.lower_bound("OPTION_");
  if (found == environment.end() || !found->first.starts_with("OPTION_")) return;
  LogWarning(
      "{} and other variables of an LMI container: no effect: this server is not started as one; "
      "--as_lmi does that",
      found->first);
}

}  // namespace

std::vector<OptionSpec> LmiOptionRows() { return Join({Rows().specs()}); }

LmiAccess SystemLmiAccess(const OptionValues& values, std::function<Status()> check) {
  return {.fetch = [values, check = std::move(check)](const std::string& source,
                                                      const std::string& revision,
                                                      bool with_weights) -> Result<fs::path> {
    if (!IsRemoteSource(source) && !NameExists(source)) {
      return NotFound(source + ": does not exist");
    }
    OptionValues own = values;
    if (!revision.empty()) {
      TANDEM_RETURN_IF_ERROR(SetUnlessSet(
          own, SourceOptionRows().RowOf<&SourceChoice::revision>().name, revision, "revision"));
    }
    return with_weights ? LocalModel(source, own, check) : LocalTokenizer(source, own, check);
  }};
}

Result<std::optional<LmiServing>> LmiServing::Take(const Environment& environment,
                                                   OptionValues& values) {
  TANDEM_RETURN_IF_ERROR(UnpackTarget(values));
  TANDEM_ASSIGN_OR_RETURN(const bool is_asked, IsAsked(environment, values));
  if (!is_asked) {
    NameIdleVariables(environment);
    return std::optional<LmiServing>();
  }
  LmiServing serving;
  serving.environment_ = environment;
  serving.context_.generation = Rows().Read(values).generation;
  serving.is_container_ =
      Rows().Read(values).as_lmi || ModelOptionRows().Read(values).target.empty();
  serving.context_.on_gpu =
      ops::NumCudaDevices() > 0 && !BackendOptionRows().Read(values).device.starts_with("cpu");
  TANDEM_RETURN_IF_ERROR(serving.TakeServer(values));
  LmiSettings settings = serving.server_.settings();
  const fs::path target = ModelOptionRows().Read(values).target;
  if (!target.empty()) settings.load_models.clear();
  settings.http.multi_model = values.Flag(*values.Find("multi_model")) ||
                              IsOn(VariableOf(environment, "SAGEMAKER_MULTI_MODEL"));
  settings.http.needs_all_ready = IsOn(VariableOf(environment, "SAGEMAKER_HEALTH_CHECK_OVERRIDE"));
  serving.store_ = !target.empty()                ? target
                   : settings.model_store.empty() ? LmiStore(environment)
                                                  : fs::path(settings.model_store);
  TANDEM_ASSIGN_OR_RETURN(serving.places_, FindLmiModels(environment, settings, serving.store_));
  serving.context_.num_models = static_cast<int>(serving.places_.size());
  serving.http_ = settings.http;
  serving.http_.tgi_compat = values.Flag(*values.Find("tgi_compat"));
  for (size_t i = 0; i < serving.places_.size(); ++i) {
    const std::string& url = serving.places_[i].url;
    const fs::path folder = IsFolder(url) ? fs::path(url) : fs::path();
    // What is wrong is told before anything is loaded.
    TANDEM_RETURN_IF_ERROR(serving.ReadModel(serving.places_[i], i, folder).status());
  }
  return std::optional<LmiServing>(std::move(serving));
}

// The server's own keys.
Status LmiServing::TakeServer(OptionValues& values) {
  const std::string_view home = VariableOf(environment_, "MODEL_SERVER_HOME");
  const fs::path path = fs::path(home.empty() ? "/opt/djl" : home) / "conf/config.properties";
  LmiFile file;
  if (NameExists(path)) {
    TANDEM_ASSIGN_OR_RETURN(file, ReadLmiFile(path));
    config_file_ = path;
  }
  server_keys_ = LmiServerKeys(environment_, file);
  TANDEM_ASSIGN_OR_RETURN(server_, LmiConfig::ForServer(server_keys_, context_));
  for (const std::string& note : server_.notes()) LogWarning("{}", note);
  TANDEM_RETURN_IF_ERROR(server_.SetOptions(values));
  return TakeAddress(values);
}

Status LmiServing::TakeAddress(OptionValues& values) const {
  const LmiSettings& settings = server_.settings();
  const std::string& given = settings.inference_address;
  TANDEM_ASSIGN_OR_RETURN(LmiAddress address, ParseLmiAddress(given.empty() ? kLmiAddress : given));
  const std::string bound(VariableOf(environment_, "SAGEMAKER_BIND_TO_PORT"));
  if (!bound.empty()) address.port = bound;
  if (settings.port) address.port = std::to_string(*settings.port);
  // A folder that somebody tries on a machine of theirs is nobody else's.
  if (is_container_ || !given.empty()) {
    TANDEM_RETURN_IF_ERROR(SetUnlessSet(values, "host", address.host, "inference_address"));
  }
  TANDEM_RETURN_IF_ERROR(SetUnlessSet(values, "port", address.port,
                                      settings.port   ? "SERVING_PORT"
                                      : bound.empty() ? "inference_address"
                                                      : "SAGEMAKER_BIND_TO_PORT"));
  if (address.https) {
    if (settings.certificate_file.empty() || settings.private_key_file.empty()) {
      return InvalidArgument(
          "inference_address: https needs certificate_file and private_key_file (PEM)");
    }
    TANDEM_RETURN_IF_ERROR(
        SetUnlessSet(values, "tls_cert_file", settings.certificate_file, "certificate_file"));
    TANDEM_RETURN_IF_ERROR(
        SetUnlessSet(values, "tls_key_file", settings.private_key_file, "private_key_file"));
  }
  // Whoever runs the container decides who reaches its port.
  const bool has_key =
      values.IsSet(*values.Find("api_key")) || values.IsSet(*values.Find("api_key_file"));
  if (has_key || serve::IsLoopback(values.Text(*values.Find("host")))) return {};
  return SetUnlessSet(values, "insecure", "true", "LMI");
}

Result<LmiServing::Model> LmiServing::ReadModel(const LmiModelPlace& place, size_t number,
                                                const fs::path& folder) const {
  LmiFile file;
  if (!folder.empty() && NameExists(folder / kLmiProperties)) {
    TANDEM_ASSIGN_OR_RETURN(file, ReadLmiFile(folder / kLmiProperties));
  }
  LmiGivenKeys given = LmiModelKeys(environment_, server_keys_, file);
  for (const auto& [key, value] : place.keys) given.emplace(key, value);
  if (!place.engine.empty()) given.emplace("engine", LmiGiven{place.engine, "load_models"});
  if (!place.devices.empty()) {
    given.insert_or_assign("load_on_devices", LmiGiven{place.devices, "load_models"});
  }
  LmiContext context = context_;
  context.model = static_cast<int>(number);
  Model read;
  TANDEM_ASSIGN_OR_RETURN(read.config, LmiConfig::ForModel(std::move(given), context));
  read.folder = folder;
  if (!folder.empty() && NameExists(folder / "model.py") &&
      read.config.settings().sources.entry_point.empty()) {
    return InvalidArgument(fmt::format(
        "{}: is a handler in Python, and no Python is run; to serve the model without it, remove "
        "it, or set option.entryPoint=djl_python.tensorrt_llm in serving.properties",
        (folder / "model.py").string()));
  }
  return read;
}

// The local folder that the model is in.
Result<fs::path> LmiServing::SourceOf(const Model& model, const LmiAccess& access) const {
  const LmiSources& sources = model.config.settings().sources;
  const std::string& id = sources.model_id;
  if (id.empty()) {
    if (!model.folder.empty()) return model.folder;
    return InvalidArgument("option.model_id: is missing, and there is no folder with a model");
  }
  if (const fs::path named = FolderOfId(model.folder, id); IsFolder(named)) return named;
  if (fs::path(id).is_absolute() && !NameExists(id)) {
    return NotFound(fmt::format("option.model_id: {} does not exist", id));
  }
  Result<fs::path> fetched = access.fetch(id, sources.revision, true);
  if (!fetched.ok()) return fetched.status().Annotate("option.model_id");
  return fetched;
}

Result<UrlModel> LmiServing::ModelValues(size_t model, const OptionValues& values,
                                         const LmiAccess& access) const {
  return ValuesOf(places_[model], model, values, access);
}

Result<UrlModel> LmiServing::AddedModelValues(const std::string& url, const OptionValues& values,
                                              const LmiAccess& access) const {
  LmiModelPlace place;
  place.url = LocateLmiModel(url, store_);
  return ValuesOf(place, places_.size(), values, access);
}

Result<UrlModel> LmiServing::ValuesOf(const LmiModelPlace& place, size_t number,
                                      const OptionValues& base, const LmiAccess& access) const {
  TANDEM_ASSIGN_OR_RETURN(const fs::path folder, FolderOf(place, access));
  TANDEM_ASSIGN_OR_RETURN(Model read, ReadModel(place, number, folder));
  const LmiSettings& settings = read.config.settings();
  if (!folder.empty() && NameExists(folder / "requirements.txt")) {
    LogWarning("{}: no effect: no Python is run", (folder / "requirements.txt").string());
  }
  TANDEM_ASSIGN_OR_RETURN(const fs::path source, SourceOf(read, access));
  TANDEM_ASSIGN_OR_RETURN(LmiFolder found, FindServableFolder(source));
  if (!found.note.empty()) LogWarning("{}", found.note);
  OptionValues values = base;
  const auto set = [&]<auto kField>(const fs::path& path, std::string_view where) {
    const std::string_view name = ModelOptionRows().RowOf<kField>().name;
    return path.empty() ? Status() : SetUnlessSet(values, name, path.string(), where);
  };
  // MODEL names the store.
  TANDEM_RETURN_IF_ERROR(values.Set(ModelOptionRows().RowOf<&ModelOptions::target>().name,
                                    {found.path.string()}, "option.model_id"));
  if (!settings.sources.tokenizer.empty()) {
    fs::path tokenizer = FolderOfId(folder, settings.sources.tokenizer);
    if (!IsFolder(tokenizer)) {
      TANDEM_ASSIGN_OR_RETURN(tokenizer, access.fetch(settings.sources.tokenizer,
                                                      settings.sources.tokenizer_revision, false));
    }
    found.tokenizer = tokenizer;
  }
  TANDEM_RETURN_IF_ERROR(
      set.operator()<&ModelOptions::tokenizer_dir>(found.tokenizer, "option.tokenizer"));
  if (const std::string& id = settings.sources.draft_model_id; !id.empty()) {
    fs::path draft_folder = FolderOfId(folder, id);
    if (!IsFolder(draft_folder)) {
      TANDEM_ASSIGN_OR_RETURN(draft_folder, access.fetch(id, {}, true));
    }
    TANDEM_ASSIGN_OR_RETURN(const LmiFolder servable, FindServableFolder(draft_folder));
    TANDEM_RETURN_IF_ERROR(
        set.operator()<&ModelOptions::draft>(servable.path, "option.draft_model_id"));
  }
  TANDEM_RETURN_IF_ERROR(SettleVersions(found.path, read.config));
  for (const std::string& note : read.config.notes()) LogWarning("{}", note);
  TANDEM_RETURN_IF_ERROR(read.config.SetOptions(values));
  TANDEM_RETURN_IF_ERROR(BoundLengths(base, read.config, values));
  UrlModel model{std::move(values), settings.http};
  model.http->tgi_compat = model.http->tgi_compat || base.Flag(*base.Find("tgi_compat"));
  return model;
}

// The folder with serving.properties; empty for a model that the environment alone names.
Result<fs::path> LmiServing::FolderOf(const LmiModelPlace& place, const LmiAccess& access) {
  if (place.url.empty() || IsFolder(place.url)) return fs::path(place.url);
  TANDEM_ASSIGN_OR_RETURN(const fs::path fetched, access.fetch(place.url, {}, true));
  return DescendLmiFolder(fetched);
}

Result<std::string> LmiServing::Show(const OptionValues& values) const {
  const LmiAccess access = SystemLmiAccess(values, {});
  std::string out = "# The server";
  out += config_file_.empty() ? "\n" : fmt::format(" ({})\n", config_file_.string());
  TANDEM_ASSIGN_OR_RETURN(const std::string server, server_.Show(values));
  out += server;
  for (size_t i = 0; i < places_.size(); ++i) {
    fs::path folder;
    if (!IsRemoteSource(places_[i].url)) {
      TANDEM_ASSIGN_OR_RETURN(folder, FolderOf(places_[i], access));
    }
    TANDEM_ASSIGN_OR_RETURN(const Model model, ReadModel(places_[i], i, folder));
    out += fmt::format("\n# The model {}{}{}\n", places_[i].name,
                       places_[i].url.empty() ? "" : " in ", places_[i].url);
    for (const std::string& note : model.config.notes()) out += fmt::format("# note: {}\n", note);
    TANDEM_ASSIGN_OR_RETURN(const std::string shown, model.config.Show(values));
    out += shown;
  }
  return out;
}

}  // namespace tandem::apps
