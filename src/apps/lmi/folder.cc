#include "apps/lmi/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/output_folder.h"
#include "engine_folder/engine_folder.h"
#include "model/json_fields.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

constexpr int kLevels = 2;          // below the folder
constexpr size_t kMaxFolders = 64;  // that are looked into

struct Seen {
  fs::path folder;
  bool servable = false;
  bool has_config = false;   // of Hugging Face
  fs::path engine = {};      // an opaque one
  std::string made_of = {};  // the model that a config names
};

bool HasWeights(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_torch = name.starts_with("pytorch_model") && name.ends_with(".bin");
    if (is_torch || name.ends_with(".safetensors")) return true;
  }
  return false;
}

fs::path FirstEngine(const fs::path& folder) {
  fs::path first;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".engine") continue;
    if (first.empty() || entry->path() < first) first = entry->path();
  }
  return first;
}

Seen LookInto(const fs::path& folder) {
  Seen seen{.folder = folder};
  seen.engine = FirstEngine(folder);
  const Result<std::string> text = ReadTextFile(folder / "config.json");
  if (!text.ok()) return seen;
  const Result<JsonFields> config = JsonFields::Parse(*text);
  if (!config.ok()) return seen;
  if (config->Has("build_config")) {
    seen.servable = OpenEngine(folder).ok();  // one that this program wrote
  } else if (config->Has("architectures")) {
    seen.has_config = true;
    seen.servable = HasWeights(folder);
    seen.made_of = config->Text("_name_or_path", "");
  } else if (config->Has("architecture")) {
    seen.servable = HasWeights(folder);
  }
  if (seen.servable) seen.engine.clear();
  return seen;
}

std::vector<fs::path> FoldersIn(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const bool is_hidden = entry->path().filename().string().starts_with('.');
    if (!is_hidden && entry->is_directory(ignored)) folders.push_back(entry->path());
  }
  std::ranges::sort(folders);
  return folders;
}

// The nearest folder with a tokenizer, from `inner` up to `outer`.
fs::path TokenizerAbove(fs::path inner, const fs::path& outer) {
  while (true) {
    if (HasTokenizer(inner)) return inner;
    if (inner == outer || inner == inner.parent_path()) return {};
    inner = inner.parent_path();
  }
}

Status NothingToServe(const fs::path& root, const std::vector<Seen>& seen) {
  std::vector<std::string> folders;
  const Seen* engine = nullptr;
  const Seen* config = nullptr;
  for (const Seen& each : seen) {
    folders.push_back(each.folder.string());
    if (engine == nullptr && !each.engine.empty()) engine = &each;
    if (config == nullptr && each.has_config) config = &each;
  }
  if (engine != nullptr) {
    const std::string of =
        config == nullptr || config->made_of.empty()
            ? ""
            : fmt::format(" ({} says {})", (config->folder / "config.json").string(),
                          config->made_of);
    return NotFound(fmt::format(
        "{} is an engine of TensorRT, which nothing else can run, and there are no weights beside "
        "it: put the model's .safetensors files into {}, or let option.model_id name the Hugging "
        "Face model that it was made of{}",
        engine->engine.string(), (config == nullptr ? engine : config)->folder.string(), of));
  }
  if (config != nullptr) {
    return NotFound(
        fmt::format("{}: holds a config.json but no weights (.safetensors or pytorch_model*.bin)",
                    config->folder.string()));
  }
  return NotFound(
      fmt::format("{}: holds no model: a config.json and .safetensors files were looked for in {}; "
                  "option.model_id names a model elsewhere",
                  root.string(), fmt::join(folders, ", ")));
}

}  // namespace

Result<LmiFolder> FindServableFolder(const fs::path& folder) {
  std::vector<Seen> seen;
  std::vector<fs::path> level = {folder};
  for (int depth = 0; depth <= kLevels && !level.empty(); ++depth) {
    std::vector<fs::path> next;
    for (const fs::path& each : level) {
      if (seen.size() == kMaxFolders) break;
      seen.push_back(LookInto(each));
      if (!seen.back().servable) {
        for (fs::path& inner : FoldersIn(each)) next.push_back(std::move(inner));
        continue;
      }
      LmiFolder found{.path = each, .tokenizer = {}, .note = {}};
      const fs::path tokenizer = TokenizerAbove(each, folder);
      if (tokenizer != each) found.tokenizer = tokenizer;
      const fs::path engine = FirstEngine(each / "1");
      if (depth > 0) {
        found.note = fmt::format("{}: the model is in {}", folder.string(),
                                 fs::relative(each, folder).string());
      }
      if (!engine.empty()) {
        found.note +=
            fmt::format("{}{}: an engine of TensorRT is not run; the weights beside it are",
                        found.note.empty() ? "" : "; ", engine.string());
      }
      return found;
    }
    level = std::move(next);
  }
  return NothingToServe(folder, seen);
}

bool IsFolder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

fs::path FolderOfId(const fs::path& folder, const std::string& id) {
  return !folder.empty() && IsFolder(folder / id) ? folder / id : fs::path(id);
}

}  // namespace tandem::apps
