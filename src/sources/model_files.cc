#include "sources/model_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/log.h"
#include "base/printable.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// In the order in which they are looked for.
struct WeightFiles {
  std::string_view file;
  std::string_view index;
};
constexpr std::array kWeightFiles = {
    WeightFiles{"model.safetensors", "model.safetensors.index.json"},
    WeightFiles{"pytorch_model.bin", "pytorch_model.bin.index.json"},
};

constexpr std::array<std::string_view, 5> kSettings = {".json", ".jinja", ".model", ".tiktoken",
                                                       ".properties"};
constexpr std::array<std::string_view, 3> kSettingNames = {"merges.txt", "vocab.txt",
                                                           "config.pbtxt"};
constexpr std::array<std::string_view, 18> kUnread = {
    ".py",  ".pyc",  ".md",   ".gitattributes", ".gitignore", ".png",     ".jpg", ".jpeg",   ".gif",
    ".pdf", ".gguf", ".ggml", ".onnx",          ".onnx_data", ".msgpack", ".h5",  ".tflite", ".ot"};

bool EndsWithAny(std::string_view name, std::span<const std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

std::string_view FileName(std::string_view name) { return name.substr(name.rfind('/') + 1); }

// Of a checkpoint or an engine: "rank0.safetensors", "rank12.engine".
bool IsRankFile(std::string_view name) {
  if (!name.starts_with("rank")) return false;
  name.remove_prefix(4);
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view end = name.substr(digits);
  return digits > 0 && (end == ".safetensors" || end == ".engine");
}

bool IsSetting(std::string_view name) {
  if (name.ends_with(".index.json")) return false;  // with its weights
  return EndsWithAny(name, kSettings) ||
         std::ranges::find(kSettingNames, name) != kSettingNames.end();
}

}  // namespace

bool IsCode(std::string_view name) {
  name = FileName(name);
  return name.ends_with(".py") || name == "requirements.txt";
}

bool IsUnread(std::string_view name) { return IsCode(name) || EndsWithAny(name, kUnread); }

ModelFiles ChooseModelFiles(std::span<const std::string> names) {
  ModelFiles files;
  std::vector<std::string> ranks;
  for (const std::string& name : names) {
    if (name.find('/') != std::string::npos) {
      if (IsCode(name)) files.left_alone.push_back(name);
    } else if (IsSetting(name)) {
      files.settings.push_back(name);
    } else if (IsRankFile(name)) {
      ranks.push_back(name);
    } else if (IsCode(name)) {
      files.left_alone.push_back(name);
    }
  }
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const auto& [file, index] : kWeightFiles) {
    if (has(file)) {
      files.weights.emplace_back(file);
      return files;
    }
    if (has(index)) {
      files.index = index;
      return files;
    }
  }
  files.weights = std::move(ranks);
  return files;
}

Result<std::vector<std::string>> ShardsOf(std::string_view index_text) {
  const auto json = nlohmann::json::parse(index_text, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    return InvalidArgument("has no weight_map: it names no files");
  }
  std::set<std::string> shards;
  for (const auto& file : *map) {
    if (!file.is_string() || !IsSafeRelativePath(file.get_ref<const std::string&>()) ||
        file.get_ref<const std::string&>().find('/') != std::string::npos) {
      return InvalidArgument("weight_map: names a file that is not beside it");
    }
    shards.insert(file.get<std::string>());
  }
  return std::vector<std::string>(shards.begin(), shards.end());
}

std::string MissingWeights(const fs::path& folder) {
  std::error_code ignored;
  const auto has = [&](std::string_view name) { return fs::exists(folder / name, ignored); };
  for (const auto& [file, index] : kWeightFiles) {
    if (has(file)) return {};
    if (!has(index)) continue;
    const Result<std::string> text = ReadTextFile(folder / index);
    if (!text.ok()) return std::string(index);
    const auto shards = ShardsOf(*text);
    if (!shards.ok()) return std::string(index);
    for (const std::string& shard : *shards) {
      if (!has(shard)) return shard;
    }
    return {};
  }
  if (has("rank0.safetensors") || has("rank0.engine")) return {};
  return std::string(kWeightFiles.front().file);
}

void NameCode(std::string_view model, std::span<const std::string> names) {
  if (names.empty()) return;
  LogInfo("{}: code is left alone, nothing of it is run: {}", model, fmt::join(names, ", "));
}

bool IsSafeRelativePath(std::string_view name) {
  constexpr size_t kLongestName = 255;
  constexpr size_t kLongestPath = 1024;
  if (name.empty() || name.size() > kLongestPath || name.front() == '/' || name.back() == '/' ||
      name.find('\\') != std::string_view::npos || Printable(name) != name) {
    return false;
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kLongestName) return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace tandem
