#include "apps/lmi/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <system_error>
#include <utility>

#include "apps/lmi/folder.h"
#include "apps/models/local_model.h"
#include "base/file.h"
#include "sources/model_source.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStore = "/opt/ml/model";

struct Entries {
  std::vector<fs::path> folders;
  std::vector<fs::path> archives;
  bool others = false;

  bool empty() const { return folders.empty() && archives.empty() && !others; }
};

Result<Entries> ReadEntries(const fs::path& folder) {
  Entries entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || name == "lost+found") continue;
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      entries.folders.push_back(entry->path());
    } else if (IsArchiveName(name)) {
      entries.archives.push_back(entry->path());
    } else {
      entries.others = true;
    }
  }
  if (error) return FailedPrecondition(folder.string() + ": " + error.message());
  std::ranges::sort(entries.folders);
  std::ranges::sort(entries.archives);
  return entries;
}

std::string LastPart(std::string_view url) {
  while (url.ends_with('/')) url.remove_suffix(1);
  const std::string_view last = url.substr(url.rfind('/') + 1);
  const std::string_view stem = ArchiveStem(last);
  return std::string(stem.empty() ? last : stem);
}

// What HF_MODEL_ID names.
LmiModelPlace HubModel(const Environment& environment, std::string_view id) {
  LmiModelPlace model;
  for (const char c : id) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    model.name.push_back(is_word ? c : '_');
  }
  std::string url(id);
  constexpr std::string_view kLocal = "djl://";
  if (url.starts_with(kLocal) || url.starts_with("s3://") || IsFolder(url)) {
    model.url = std::move(url);
    return model;
  }
  model.keys["option.model_id"] = {std::move(url), "HF_MODEL_ID"};
  if (const auto revision = VariableOf(environment, "HF_REVISION"); !revision.empty()) {
    model.keys["option.revision"] = {std::string(revision), "HF_REVISION"};
  }
  if (const auto task = VariableOf(environment, "HF_TASK"); !task.empty()) {
    model.keys["option.task"] = {std::string(task), "HF_TASK"};
  }
  return model;
}

// Whether the model of this folder has to be named by something else.
bool HoldsOnlyProperties(const fs::path& folder) {
  if (!IsFolder(folder) || NameExists(folder / "config.json")) return false;
  const Result<LmiFile> file = ReadLmiFile(folder / kLmiProperties);
  return file.ok() && std::ranges::none_of(file->properties, [](const Property& property) {
           return property.key == "option.model_id";
         });
}

Status CheckNames(const std::vector<LmiModelPlace>& models) {
  std::set<std::string_view> names;
  for (const LmiModelPlace& model : models) {
    if (names.insert(model.name).second) continue;
    return InvalidArgument(fmt::format(
        "two models have the name {}; SERVING_LOAD_MODELS gives others: NAME=PATH,NAME=PATH",
        model.name));
  }
  return {};
}

}  // namespace

Result<LmiModelPlace> ParseLmiModel(std::string_view entry) {
  LmiModelPlace model;
  const size_t equals = entry.find('=');
  if (equals == std::string_view::npos) {
    model.url = entry;
    model.name = LastPart(entry);
  } else {
    model.url = entry.substr(equals + 1);
    std::string_view endpoint = entry.substr(0, equals);
    if (endpoint.starts_with('[')) endpoint.remove_prefix(1);
    if (endpoint.ends_with(']')) endpoint.remove_suffix(1);
    std::vector<std::string> parts;
    while (true) {
      const size_t colon = std::min(endpoint.find(':'), endpoint.size());
      parts.emplace_back(endpoint.substr(0, colon));
      if (colon == endpoint.size()) break;
      endpoint.remove_prefix(colon + 1);
    }
    parts.resize(std::max<size_t>(parts.size(), 4));  // name, version, engine, devices
    if (parts.size() > 4) {
      return InvalidArgument(fmt::format(
          "load_models: '{}' is not of the form [name[:version[:engine[:devices]]]=]url", entry));
    }
    model.name = parts[0].empty() ? LastPart(model.url) : parts[0];
    model.engine = parts[2];
    model.devices = parts[3];
  }
  if (model.url.empty() || model.name.empty()) {
    return InvalidArgument(fmt::format("load_models: '{}' names no model", entry));
  }
  return model;
}

std::string LocateLmiModel(std::string url, const fs::path& store) {
  if (url.starts_with("file://")) url.erase(0, 7);
  if (url.starts_with("file:")) url.erase(0, 5);
  if (url.find("://") != std::string::npos || NameExists(url)) return url;
  const fs::path inside = store / url;
  return fs::path(url).is_relative() && NameExists(inside) ? inside.string() : url;
}

Result<fs::path> DescendLmiFolder(fs::path folder) {
  folder = LoneFolder(std::move(folder));
  TANDEM_ASSIGN_OR_RETURN(const Entries entries, ReadEntries(folder));
  const bool is_archive =
      !entries.others && entries.folders.empty() && entries.archives.size() == 1;
  return is_archive ? entries.archives.front() : folder;
}

fs::path LmiStore(const Environment& environment) {
  const std::string_view named = VariableOf(environment, "SERVING_MODEL_STORE");
  return named.empty() ? kStore : named;
}

bool IsLmiFolder(const fs::path& folder) {
  if (!IsFolder(folder)) return false;
  if (NameExists(folder / kLmiProperties)) return true;
  if (NameExists(folder / "config.json")) return false;  // a model as other servers know it
  const Result<Entries> entries = ReadEntries(folder);
  if (!entries.ok() || entries->others) return false;
  return std::ranges::any_of(entries->folders, [](const fs::path& model) {
    const Result<fs::path> inner = DescendLmiFolder(model);
    return inner.ok() && NameExists(*inner / kLmiProperties);
  });
}

bool IsLmiEnvironment(const Environment& environment) {
  for (const std::string_view name :
       {"HF_MODEL_ID", "OPTION_MODEL_ID", "SERVING_LOAD_MODELS", "SERVING_MODEL_STORE"}) {
    if (!VariableOf(environment, name).empty()) return true;
  }
  const fs::path store = LmiStore(environment);
  if (!IsFolder(store)) return false;
  const Result<Entries> entries = ReadEntries(store);
  return !entries.ok() || !entries->empty();  // what cannot be read gives its error
}

Result<std::vector<LmiModelPlace>> ListLmiStore(const fs::path& store) {
  std::vector<LmiModelPlace> models;
  if (!NameExists(store)) return models;
  TANDEM_ASSIGN_OR_RETURN(const Entries entries, ReadEntries(store));
  if (entries.empty()) return models;
  const fs::path named = store.has_filename() ? store : store.parent_path();
  if (entries.others) {
    std::error_code ignored;
    const std::string name = fs::weakly_canonical(named, ignored).filename().string();
    models.push_back({.name = name.empty() ? "model" : name, .url = store.string()});
    return models;
  }
  for (const fs::path& folder : entries.folders) {
    TANDEM_ASSIGN_OR_RETURN(const fs::path inner, DescendLmiFolder(folder));
    models.push_back({.name = folder.filename().string(), .url = inner.string()});
  }
  for (const fs::path& archive : entries.archives) {
    models.push_back(
        {.name = std::string(ArchiveStem(archive.filename().native())), .url = archive.string()});
  }
  return models;
}

Result<std::vector<LmiModelPlace>> FindLmiModels(const Environment& environment,
                                                 const LmiSettings& server, const fs::path& store) {
  std::vector<LmiModelPlace> models;
  std::string_view list = server.load_models;
  if (list.empty()) list = "ALL";
  const bool may_be_none = server.load_models == "NONE" || server.http.multi_model;
  constexpr std::string_view kSeparators = ", \t\n";
  while (!list.empty()) {
    const size_t end = std::min(list.find_first_of(kSeparators), list.size());
    const std::string_view entry = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    if (entry.empty() || entry == "NONE") continue;
    if (entry == "ALL") {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<LmiModelPlace> found, ListLmiStore(store));
      models.insert(models.end(), found.begin(), found.end());
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(LmiModelPlace model, ParseLmiModel(entry));
    model.url = LocateLmiModel(std::move(model.url), store);
    models.push_back(std::move(model));
  }
  const std::string_view id = VariableOf(environment, "HF_MODEL_ID");
  if (!id.empty()) {
    // A folder that holds only its properties has no other model.
    LmiModelPlace hub = HubModel(environment, id);
    if (models.size() == 1 && hub.url.empty() && HoldsOnlyProperties(models.front().url)) {
      models.front().keys = std::move(hub.keys);
    } else {
      models.push_back(std::move(hub));
    }
  }
  if (models.empty() && !VariableOf(environment, "OPTION_MODEL_ID").empty()) {
    models.push_back({.name = "model", .url = {}});
  }
  TANDEM_RETURN_IF_ERROR(CheckNames(models));
  if (!models.empty() || may_be_none) return models;
  return NotFound(fmt::format(
      "there is no model: {} {}, and none of HF_MODEL_ID, OPTION_MODEL_ID and SERVING_LOAD_MODELS "
      "names one",
      store.string(), NameExists(store) ? "is empty" : "does not exist"));
}

}  // namespace tandem::apps
