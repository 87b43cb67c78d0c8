#include "checkpoint/hf_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "checkpoint/fp8_scales.h"
#include "model/json_fields.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// A shard's name comes from the index: it must stay inside the folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Why there are no weights to read: other formats are named, with the way out.
Status NoWeights(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
      return Unimplemented(entry.path().string() +
                           ": weights in this format can run code when they are opened and are not "
                           "read; save the model as safetensors");
    }
    if (extension == ".gguf") {
      return Unimplemented(
          entry.path().string() +
          ": GGUF weights are not read; bring the original folder with safetensors");
    }
  }
  return NotFound(folder.string() + ": holds neither " + kSingleFile + " nor " + kIndexFile);
}

}  // namespace

Result<std::unique_ptr<HfReader>> HfReader::Open(const fs::path& folder,
                                                 std::optional<DType> dtype) {
  std::unique_ptr<HfReader> reader(new HfReader());
  reader->folder_ = folder;
  TANDEM_RETURN_IF_ERROR(reader->ReadConfig(dtype));
  TANDEM_RETURN_IF_ERROR(reader->OpenShards());
  reader->SettleHead();
  TANDEM_RETURN_IF_ERROR(reader->SettleDType());
  TANDEM_RETURN_IF_ERROR(reader->CheckAll());
  reader->WarnOfCacheScales();
  return reader;
}

Status HfReader::ReadConfig(std::optional<DType> dtype) {
  const fs::path path = folder_ / "config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto spec = SpecFromHfConfig(text);
  if (!spec.ok()) return spec.status().Annotate(path.string());
  spec_ = *std::move(spec);
  TANDEM_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Parse(text));
  config_names_dtype_ = config.Has("torch_dtype") || config.Has("dtype");
  if (dtype) {
    spec_.dtype = *dtype;
    config_names_dtype_ = true;
  }
  TANDEM_ASSIGN_OR_RETURN(family_, FindFamily(spec_.architecture));
  return ValidateSpec(spec_);
}

Status HfReader::OpenShards() {
  if (NameExists(folder_ / kSingleFile)) return OpenSingleFile(folder_ / kSingleFile);
  if (NameExists(folder_ / kIndexFile)) return OpenIndex(folder_ / kIndexFile);
  return NoWeights(folder_);
}

Status HfReader::OpenSingleFile(const fs::path& path) {
  TANDEM_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
  for (const auto& [name, tensor] : file->tensors()) tensors_[name] = {tensor, file.get()};
  shards_.push_back(std::move(file));
  return {};
}

Status HfReader::AddShard(const std::string& name,
                          std::map<std::string, const SafetensorsFile*>& open) {
  if (open.contains(name)) return {};
  if (!IsPlainFileName(name)) {
    return InvalidArgument((folder_ / kIndexFile).string() + ": \"" + name.substr(0, 80) +
                           "\" is not the name of a file in this folder");
  }
  auto file = SafetensorsFile::Open(folder_ / name);
  if (file.status().code() == Code::kNotFound) {
    return NotFound((folder_ / name).string() + ": this shard is named by " + kIndexFile +
                    " and is missing");
  }
  if (!file.ok()) return file.status();
  open[name] = file->get();
  shards_.push_back(*std::move(file));
  return {};
}

Status HfReader::OpenIndex(const fs::path& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const auto index = JsonFields::Parse(text);
  if (!index.ok()) return index.status().Annotate(path.string());
  const auto weight_map = index->Object("weight_map");
  if (!weight_map) {
    index->Fail("weight_map", "is missing");
    return index->status().Annotate(path.string());
  }
  std::map<std::string, const SafetensorsFile*> open;
  for (const std::string& name : weight_map->Keys()) {
    const std::string shard = weight_map->Text(name);
    if (!index->status().ok()) return index->status().Annotate(path.string());
    TANDEM_RETURN_IF_ERROR(AddShard(shard, open));
    const SafetensorsFile* file = open.at(shard);
    const auto found = file->tensors().find(name);
    if (found == file->tensors().end()) {
      return NotFound(file->path().string() + ": tensor \"" + name + "\" is missing, though " +
                      kIndexFile + " puts it there");
    }
    tensors_[name] = {found->second, file};
  }
  return {};
}

// A head that is stored and differs from the embedding is meant, whatever the config says of tying;
// a config that does not tie but leaves the head out is refused by CheckAll.
void HfReader::SettleHead() {
  if (!spec_.tied_head) return;
  const auto head = tensors_.find(family_->hf_name(WeightRole::kHead, 0, WeightPart::kWeight));
  const auto embedding =
      tensors_.find(family_->hf_name(WeightRole::kEmbedding, 0, WeightPart::kWeight));
  if (head == tensors_.end() || embedding == tensors_.end()) return;
  const Tensor& a = head->second.tensor;
  const Tensor& b = embedding->second.tensor;
  const bool same = a.dtype == b.dtype && a.shape == b.shape &&
                    std::memcmp(a.data, b.data, static_cast<size_t>(a.NumBytes())) == 0;
  if (same) return;
  LogWarning("{}: tie_word_embeddings is true but the stored head differs; the stored one is used",
             folder_.string());
  spec_.tied_head = false;
}

// A config that names no type leaves it to the weights.
Status HfReader::SettleDType() {
  if (config_names_dtype_) return {};
  const auto embedding =
      tensors_.find(family_->hf_name(WeightRole::kEmbedding, 0, WeightPart::kWeight));
  if (embedding == tensors_.end() || !IsFloat(embedding->second.tensor.dtype)) return {};
  spec_.dtype = embedding->second.tensor.dtype;
  return {};
}

Status HfReader::Check(WeightRole role, int64_t layer, WeightPart part) const {
  const std::string name = family_->hf_name(role, layer, part);
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    const fs::path where = shards_.size() == 1 ? shards_.front()->path() : folder_;
    return NotFound(where.string() + ": tensor \"" + name + "\" is missing");
  }
  const Tensor& tensor = found->second.tensor;
  const std::string where = found->second.file->path().string() + ": tensor \"" + name + "\"";
  const Shape expected = WeightShape(spec_, role, part);
  if (IsScale(part)) {
    TANDEM_RETURN_IF_ERROR(CheckScaleShape(tensor, expected, where));
    return CheckScaleValues(tensor, where);
  }
  if (tensor.shape != expected) {
    return InvalidArgument(where + ": has shape " + tensor.shape.ToString() +
                           "; by config.json it is " + expected.ToString());
  }
  const bool fp8 = WeightDType(spec_, role, part) == DType::kF8E4M3;
  if (fp8 ? tensor.dtype == DType::kF8E4M3 : IsFloat(tensor.dtype)) return {};
  return Unimplemented(
      where + ": is stored as " + std::string(SafetensorsName(tensor.dtype)) +
      (fp8 ? "; by quantization_config the linear weights of all layers are F8_E4M3"
           : "; it must be F32, F16 or BF16"));
}

Status HfReader::CheckAll() const {
  const auto check = [this](WeightRole role, int64_t layer) -> Status {
    for (const WeightPart part : WeightParts(spec_, role)) {
      TANDEM_RETURN_IF_ERROR(Check(role, layer, part));
    }
    return {};
  };
  for (const WeightRole role : GlobalRoles()) {
    if (role == WeightRole::kHead && spec_.tied_head) continue;
    TANDEM_RETURN_IF_ERROR(check(role, 0));
  }
  for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
    for (const WeightRole role : LayerRoles()) TANDEM_RETURN_IF_ERROR(check(role, layer));
  }
  return {};
}

// They say how a cache in fp8 was meant to be rounded; a cache in 16 bits needs none.
void HfReader::WarnOfCacheScales() const {
  for (const auto& [name, stored] : tensors_) {
    if (!name.ends_with(".k_scale") && !name.ends_with(".v_scale") &&
        !name.ends_with(".kv_scale")) {
      continue;
    }
    LogWarning("{}: scales of keys and values (\"{}\") are not used; a cache in fp8 has none",
               folder_.string(), name);
    return;
  }
}

Result<Tensor> HfReader::Get(WeightRole role, int64_t layer, WeightPart part) {
  if (role == WeightRole::kHead && spec_.tied_head) role = WeightRole::kEmbedding;
  TANDEM_RETURN_IF_ERROR(Check(role, layer, part));
  const Tensor& stored = tensors_.at(family_->hf_name(role, layer, part)).tensor;
  if (IsScale(part)) return SpreadScales(stored, WeightShape(spec_, role, part), scratch_);
  return AsDType(stored, WeightDType(spec_, role, part), scratch_);
}

}  // namespace tandem
