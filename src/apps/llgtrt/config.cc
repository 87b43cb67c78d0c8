#include "apps/llgtrt/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/cli/file_options.h"
#include "base/file.h"
#include "serve/json_fault.h"
#include "text/json5.h"

namespace tandem::apps {
namespace {

using serve::Json;
using serve::JsonMember;

constexpr size_t kMaxFileBytes = 16u << 20;  // a chat template may be part of it
constexpr std::string_view kRuntime = "runtime";
// Keys that runtime.json may lack: they were nullable there.
constexpr std::string_view kNullable[] = {
    "cross_kv_cache_fraction", "secondary_offload_min_priority", "event_buffer_max_size"};

std::string WhereOf(std::string_view file, std::string_view path) {
  return file.empty() ? std::string(path) : fmt::format("{}: {}", file, path);
}

// Whether `path` is a section: keys lie below it.
bool IsSection(std::string_view path) {
  return std::ranges::any_of(LlgtrtKeys(), [path](const LlgtrtKey& key) {
    return key.path.size() > path.size() && key.path.starts_with(path) &&
           key.path[path.size()] == '.';
  });
}

const LlgtrtKey* FindKey(std::string_view path) {
  const auto key = std::ranges::find(LlgtrtKeys(), path, &LlgtrtKey::path);
  return key == LlgtrtKeys().end() ? nullptr : &*key;
}

Status UnknownKey(std::string_view file, std::string_view path) {
  std::vector<std::string_view> paths;
  for (const LlgtrtKey& key : LlgtrtKeys()) paths.push_back(key.path);
  const std::string_view closest = ClosestName(path, paths);
  return InvalidArgument(
      fmt::format("{}: there is no such key{}", WhereOf(file, path),
                  closest.empty() ? "" : fmt::format("; did you mean {}?", closest)));
}

Result<Json> ParseObject(std::string_view json, std::string_view file) {
  Result<Json> object = serve::ParseJson(json);
  if (!object.ok()) {
    std::string_view cause = object.status().message();
    constexpr std::string_view kBody = "the body is ";  // this one is a file
    if (cause.starts_with(kBody)) cause.remove_prefix(kBody.size());
    return InvalidArgument(fmt::format("{}, line {}: {}", file, serve::JsonFaultLine(json), cause));
  }
  if (object->AsObject() != nullptr) return object;
  return InvalidArgument(fmt::format("{}: must hold an object, not {}", file, object->KindName()));
}

}  // namespace

Result<LlgtrtConfig> LlgtrtConfig::Read(const LlgtrtFiles& files) {
  LlgtrtConfig config;
  for (const auto& path : files.configs) TANDEM_RETURN_IF_ERROR(config.AddConfig(path));
  if (!files.runtime.empty()) TANDEM_RETURN_IF_ERROR(config.AddRuntime(files.runtime));
  TANDEM_RETURN_IF_ERROR(config.TakeAll());
  return config;
}

Status LlgtrtConfig::AddConfig(const std::filesystem::path& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
  Result<std::string> json = Json5ToJson(text);
  if (!json.ok()) return json.status().Annotate(path.string());
  TANDEM_ASSIGN_OR_RETURN(const Json object, ParseObject(*json, path.string()));
  return AddMembers(object, "", path.string());
}

Status LlgtrtConfig::AddRuntime(const std::filesystem::path& path) {
  const std::string file = path.string();
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxFileBytes));
  TANDEM_ASSIGN_OR_RETURN(const Json object, ParseObject(text, file));
  for (const LlgtrtKey& key : LlgtrtKeys()) {
    if (key.section() != kRuntime || std::ranges::count(kNullable, key.name()) > 0) continue;
    if (object.Find(key.name()) != nullptr) continue;
    return InvalidArgument(
        fmt::format("{}: {} is missing; runtime.json holds every key", file, key.name()));
  }
  return AddMembers(object, kRuntime, file);
}

Status LlgtrtConfig::AddMembers(const Json& object, std::string_view section,
                                std::string_view file) {
  for (const JsonMember& member : *object.AsObject()) {
    const std::string path =
        section.empty() ? member.name : fmt::format("{}.{}", section, member.name);
    if (const LlgtrtKey* key = FindKey(path)) {
      given_[key->path] = {member.value, WhereOf(file, path)};
    } else if (!IsSection(path)) {
      return UnknownKey(file, path);
    } else if (member.value.AsObject() == nullptr) {
      return InvalidArgument(fmt::format("{}: must be an object, not {}", WhereOf(file, path),
                                         member.value.KindName()));
    } else {
      TANDEM_RETURN_IF_ERROR(AddMembers(member.value, path, file));
    }
  }
  return {};
}

Status LlgtrtConfig::TakeAll() {
  for (const LlgtrtKey& key : LlgtrtKeys()) {
    const auto given = given_.find(key.path);
    const std::string where =
        given == given_.end() ? fmt::format("llgtrt's {}", key.path) : given->second.where;
    Json value;
    if (given != given_.end()) {
      value = given->second.value;
    } else if (key.default_json.empty()) {
      continue;
    } else {
      TANDEM_ASSIGN_OR_RETURN(value, serve::ParseJson(key.default_json));
    }
    LlgtrtSettings added;
    if (const Status status = key.take(value, added); !status.ok()) {
      return InvalidArgument(fmt::format("{}: {}", where, status.message()));
    }
    for (auto& [name, text] : added.options) {
      where_[name] = where;
      settings_.options[name] = std::move(text);
    }
    auto& members = settings_.tokenizer_config;
    members.insert(members.end(), added.tokenizer_config.begin(), added.tokenizer_config.end());
    if (added.n_vocab) settings_.n_vocab = added.n_vocab;
  }
  return {};
}

Status LlgtrtConfig::SetOptions(OptionValues& values) const {
  for (const auto& [name, text] : settings_.options) {
    TANDEM_RETURN_IF_ERROR(SetUnlessSet(values, name, text, where_.find(name)->second));
  }
  return {};
}

std::string LlgtrtConfig::ValueOf(const LlgtrtKey& key) const {
  const auto given = given_.find(key.path);
  return given == given_.end() ? std::string(key.default_json) : given->second.value.Dump();
}

std::string ShowLlgtrtConfig(const LlgtrtConfig& config,
                             const std::map<std::string, std::string>& more) {
  std::string out = "{\n";
  std::vector<std::string> open;  // sections
  const auto indent = [&open] { return std::string(2 * open.size() + 2, ' '); };
  const auto close = [&] {
    open.pop_back();
    out += indent() + "},\n";
  };
  for (const LlgtrtKey& key : LlgtrtKeys()) {
    const std::string section(key.section());
    while (!open.empty() && section != open.back() && !section.starts_with(open.back() + ".")) {
      close();
    }
    while (open.empty() || section != open.back()) {
      const size_t begin = open.empty() ? 0 : open.back().size() + 1;
      const size_t end = std::min(section.find('.', begin), section.size());
      out += fmt::format("{}{}: {{\n", indent(), section.substr(begin, end - begin));
      open.push_back(section.substr(0, end));
    }
    std::string value = config.ValueOf(key);
    const auto found = more.find(std::string(key.path));
    if (found != more.end()) value = found->second;
    out += fmt::format("{}// {}\n", indent(), key.meaning);
    out += value.empty() ? fmt::format("{}// {}: as the model and the machine have it\n", indent(),
                                       key.name())
                         : fmt::format("{}{}: {},\n", indent(), key.name(), value);
  }
  while (!open.empty()) close();
  return out + "}\n";
}

}  // namespace tandem::apps
