#include "checkpoint/hf_tensors.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/file.h"
#include "model/json_fields.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Where a folder keeps its weights: in one file, or in shards that an index names. The first that
// exists is read.
struct WeightFiles {
  const char* file;
  const char* index;
};
constexpr std::array kWeightFiles = {
    WeightFiles{"model.safetensors", "model.safetensors.index.json"},
    WeightFiles{"pytorch_model.bin", "pytorch_model.bin.index.json"},
};

// A shard's name comes from the index: it must stay inside the folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Beside others, the tensors of the text model have names of their own. It is read by those that it
// has alone: "model.x" for "language_model.model.x" (transformers 4), "model.language_model.x" (5).
struct Beside {
  std::string_view prefix;
  std::string_view alone;
};
constexpr std::array kBeside = {
    Beside{"language_model.", ""},
    Beside{"model.language_model.", "model."},
};

std::string Renamed(std::string_view name, std::string_view prefix, std::string_view other) {
  if (!name.starts_with(prefix)) return std::string(name);
  return std::string(other).append(name.substr(prefix.size()));
}

std::string NameAlone(const std::string& name) {
  for (const auto& [prefix, alone] : kBeside) {
    if (name.starts_with(prefix)) return Renamed(name, prefix, alone);
  }
  return name;
}

// Why there are no weights to read: names other formats found in the folder, and the fix.
Status NoWeights(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
      return Unimplemented(entry.path().string() +
                           ": not a file that a Hugging Face folder keeps its weights in; save the "
                           "model with save_pretrained, as model.safetensors or pytorch_model.bin");
    }
    if (extension == ".gguf") {
      return Unimplemented(
          entry.path().string() +
          ": GGUF weights are not read; bring the original folder with safetensors");
    }
  }
  std::string names;
  for (const auto& [file, index] : kWeightFiles) {
    names += std::string(names.empty() ? "" : ", ") + file + ", " + index;
  }
  return NotFound(folder.string() + ": holds none of " + names);
}

}  // namespace

Result<HfTensors> HfTensors::Open(const fs::path& folder, std::string_view optional_prefix) {
  HfTensors tensors(folder);
  TANDEM_RETURN_IF_ERROR(tensors.OpenFiles());
  tensors.SettlePrefix(optional_prefix);
  return tensors;
}

Status HfTensors::OpenFiles() {
  for (const auto& [file, index] : kWeightFiles) {
    if (NameExists(folder_ / file)) return OpenSingleFile(folder_ / file);
    if (NameExists(folder_ / index)) return OpenIndex(index);
  }
  return NoWeights(folder_);
}

Status HfTensors::OpenSingleFile(const fs::path& path) {
  TANDEM_ASSIGN_OR_RETURN(auto file, OpenTensorFile(path));
  for (const auto& [name, tensor] : file->tensors()) {
    tensors_[NameAlone(name)] = {tensor, file.get(), name};
  }
  shards_.push_back(std::move(file));
  return {};
}

Status HfTensors::AddShard(const char* index_name, const std::string& name,
                           std::map<std::string, const TensorFile*>& open) {
  if (open.contains(name)) return {};
  if (!IsPlainFileName(name)) {
    return InvalidArgument((folder_ / index_name).string() + ": \"" + name.substr(0, 80) +
                           "\" is not the name of a file in this folder");
  }
  auto file = OpenTensorFile(folder_ / name);
  if (file.status().code() == Code::kNotFound) {
    return NotFound((folder_ / name).string() + ": this shard is named by " + index_name +
                    " and is missing");
  }
  if (!file.ok()) return file.status();
  open[name] = file->get();
  shards_.push_back(*std::move(file));
  return {};
}

Status HfTensors::OpenIndex(const char* index_name) {
  const fs::path path = folder_ / index_name;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const auto index = JsonFields::Parse(text);
  if (!index.ok()) return index.status().Annotate(path.string());
  const auto weight_map = index->Object("weight_map");
  if (!weight_map) {
    index->Fail("weight_map", "is missing");
    return index->status().Annotate(path.string());
  }
  std::map<std::string, const TensorFile*> open;
  for (const std::string& name : weight_map->Keys()) {
    const std::string shard = weight_map->Text(name);
    if (!index->status().ok()) return index->status().Annotate(path.string());
    TANDEM_RETURN_IF_ERROR(AddShard(index_name, shard, open));
    const TensorFile* file = open.at(shard);
    const auto found = file->tensors().find(name);
    if (found == file->tensors().end()) {
      return NotFound(file->path().string() + ": tensor \"" + name + "\" is missing, though " +
                      index_name + " puts it there");
    }
    tensors_[NameAlone(name)] = {found->second, file, name};
  }
  return {};
}

void HfTensors::SettlePrefix(std::string_view optional_prefix) {
  const std::string prefix(optional_prefix);
  if (prefix.empty()) return;
  const auto first = tensors_.lower_bound(prefix);
  if (first != tensors_.end() && first->first.starts_with(prefix)) return;
  std::map<std::string, Stored> named;
  for (const auto& [name, stored] : tensors_) named[prefix + name] = stored;
  tensors_ = std::move(named);
}

const Tensor* HfTensors::FindStored(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.tensor;
}

bool HfTensors::HoldsNamesWith(std::string_view prefix) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const auto& tensor) { return tensor.second.name.starts_with(prefix); });
}

std::string HfTensors::PlaceOf(const std::string& name) const {
  const auto found = tensors_.find(name);
  fs::path where = shards_.size() == 1 ? shards_.front()->path() : folder_;
  std::string stored = name;
  if (found != tensors_.end()) {
    where = found->second.file->path();
    stored = found->second.name;
  } else {
    for (const auto& [prefix, alone] : kBeside) {
      if (HoldsNamesWith(prefix)) stored = Renamed(name, alone, prefix);
    }
  }
  return where.string() + ": tensor \"" + stored + "\"";
}

std::vector<std::string_view> HfTensors::Names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, stored] : tensors_) names.push_back(name);
  return names;
}

void HfTensors::AddName(const std::string& name, const std::string& stored) {
  tensors_.emplace(name, tensors_.at(stored));
}

Status HfTensors::Verify(const std::string& name) { return Verify(tensors_.at(name)); }

Status HfTensors::Verify(Stored& stored) {
  if (!stored.verified) TANDEM_RETURN_IF_ERROR(stored.file->Verify(stored.name));
  stored.verified = true;
  return {};
}

Status HfTensors::VerifyPacked(const std::string& name) {
  for (auto stored = tensors_.lower_bound(name);
       stored != tensors_.end() && stored->first.starts_with(name); ++stored) {
    const std::string_view suffix = std::string_view(stored->first).substr(name.size());
    if (suffix.starts_with('.') || suffix.starts_with('_')) {
      TANDEM_RETURN_IF_ERROR(Verify(stored->second));
    }
  }
  return {};
}

}  // namespace tandem
