#include "checkpoint/hf_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/stored/stored_schemes.h"
#include "checkpoint/stored/stored_tensor.h"
#include "checkpoint/stored/take_tensor.h"
#include "model/families/families.h"
#include "model/hf_quantization.h"
#include "model/json_fields.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Where a folder keeps its weights: in one file, or in shards that an index names. The first that
// exists is read.
struct Layout {
  const char* file;
  const char* index;
};
constexpr std::array kLayouts = {
    Layout{"model.safetensors", "model.safetensors.index.json"},
    Layout{"pytorch_model.bin", "pytorch_model.bin.index.json"},
};

// A shard's name comes from the index: it must stay inside the folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
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
  for (const auto& [file, index] : kLayouts) {
    names += std::string(names.empty() ? "" : ", ") + file + ", " + index;
  }
  return NotFound(folder.string() + ": holds none of " + names);
}

// The suffix of a weight, for which a quantized one has others.
constexpr std::string_view kWeightSuffix = ".weight";

// What tools store of a product; some of it tells nothing new.
constexpr std::array<std::string_view, 25> kProductSuffixes = {".weight",
                                                               ".bias",
                                                               ".qweight",
                                                               ".qzeros",
                                                               ".scales",
                                                               ".g_idx",
                                                               ".weight_packed",
                                                               ".weight_scale",
                                                               ".weight_scale_inv",
                                                               ".weight_scale_2",
                                                               ".weight_shape",
                                                               ".weight_global_scale",
                                                               ".weight_g_idx",
                                                               ".input_scale",
                                                               ".weight_zero_point",
                                                               ".input_scale_ub",
                                                               ".pre_quant_scale",
                                                               ".input_zero_point",
                                                               ".input_global_scale",
                                                               ".output_scale",
                                                               ".output_zero_point",
                                                               ".k_scale",
                                                               ".v_scale",
                                                               ".q_scale",
                                                               ".kv_scale"};

// Of these, a tensor that only a quantized weight has tells who made it.
struct PackedSuffix {
  std::string_view suffix;
  std::string_view tool;
};
constexpr std::array kPackedSuffixes = {
    PackedSuffix{".qweight", "GPTQ or AutoAWQ"},
    PackedSuffix{".weight_packed", "compressed-tensors"},
    PackedSuffix{".weight_scale", "a tool with scales beside bytes"},
    PackedSuffix{".weight_scale_inv", "a tool with scales of blocks"},
    PackedSuffix{".weight.absmax", "bitsandbytes"},
    PackedSuffix{".SCB", "bitsandbytes"},
    PackedSuffix{".W_q", "HQQ"},
    PackedSuffix{".q_weight", "ExLlamaV2"},
    PackedSuffix{".trellis", "ExLlamaV3"},
    PackedSuffix{".codes", "AQLM"},
    PackedSuffix{"_blocks", "a tool that writes MXFP4"},
};

// Those of them that only some layouts read, of some products.
constexpr std::array<std::string_view, 2> kOptionalSuffixes = {".pre_quant_scale", ".weight_g_idx"};

bool AnyBitSet(const Tensor& tensor) {
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  return std::any_of(bytes, bytes + tensor.NumBytes(),
                     [](std::byte byte) { return byte != std::byte{0}; });
}

// Why a quantizable weight cannot be read that has no plain tensor.
Status NeitherPackedNorPlain(const StoredMatrix& matrix, const tandem::Layout& layout) {
  const std::string_view packed = layout.elements();
  const std::string where = matrix.PlaceOf(packed);
  if (const Tensor* stored = matrix.Find(packed)) {
    return Unimplemented(where + ": is stored as " + std::string(SafetensorsName(stored->dtype)) +
                         "; packed weights are of integers");
  }
  const bool is_other = packed != kWeightSuffix;
  return NotFound(
      where + " is missing" +
      (is_other ? ", and so is " + QuotedTensorName(matrix.name() + std::string(kWeightSuffix))
                : ""));
}

}  // namespace

std::string AddedTokens(const fs::path& folder) {
  auto text = ReadTextFile(folder / "added_tokens.json");
  return text.ok() ? *std::move(text) : "";
}

Result<std::unique_ptr<HfReader>> HfReader::Open(const fs::path& folder, std::optional<DType> dtype,
                                                 const ConfigOptions& options) {
  std::unique_ptr<HfReader> reader(new HfReader());
  reader->folder_ = folder;
  TANDEM_RETURN_IF_ERROR(reader->ReadConfig(dtype, options));
  TANDEM_RETURN_IF_ERROR(reader->OpenShards());
  reader->SettlePrefix();
  reader->SettleHead();
  TANDEM_RETURN_IF_ERROR(reader->SettleSchemes());
  reader->SettleCacheScales();
  TANDEM_RETURN_IF_ERROR(reader->SettleDType());
  TANDEM_RETURN_IF_ERROR(reader->CheckAll());
  return reader;
}

Status HfReader::ReadConfig(std::optional<DType> dtype, const ConfigOptions& options) {
  const fs::path path = folder_ / "config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto spec = SpecFromHfConfig(text, options, AddedTokens(folder_));
  if (!spec.ok()) return spec.status().Annotate(path.string());
  spec_ = *std::move(spec);
  TANDEM_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Parse(text));
  config_names_dtype_ = config.Has("torch_dtype") || config.Has("dtype");
  if (dtype) {
    spec_.dtype = *dtype;
    config_names_dtype_ = true;
  }
  family_ = FamilyOf(spec_);
  TANDEM_RETURN_IF_ERROR(ReadQuantization(text));
  return ValidateSpec(spec_);
}

// From config.json, or from the file beside it that the tools of its time wrote.
Status HfReader::ReadQuantization(const std::string& config) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields json, JsonFields::Parse(config));
  HfQuantization quantization = ReadHfQuantization(json);
  for (const QuantizationFile& file : QuantizationFiles()) {
    const fs::path path = folder_ / file.name;
    if (quantization.packing != Packing::kNone || !NameExists(path)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
    const auto fields = JsonFields::Parse(text);
    if (!fields.ok()) return fields.status().Annotate(path.string());
    quantization = file.read(*fields);
    if (!fields->status().ok()) return fields->status().Annotate(path.string());
  }
  spec_.quantization = quantization.scheme;
  if (!spec_.has_latents()) spec_.cache_scales = quantization.cache_scales;
  layout_ = FindLayout(quantization.packing);
  return {};
}

Status HfReader::OpenShards() {
  for (const auto& [file, index] : kLayouts) {
    if (NameExists(folder_ / file)) return OpenSingleFile(folder_ / file);
    if (NameExists(folder_ / index)) return OpenIndex(index);
  }
  return NoWeights(folder_);
}

Status HfReader::OpenSingleFile(const fs::path& path) {
  TANDEM_ASSIGN_OR_RETURN(auto file, OpenTensorFile(path));
  for (const auto& [name, tensor] : file->tensors()) tensors_[name] = {tensor, file.get(), name};
  shards_.push_back(std::move(file));
  return {};
}

Status HfReader::AddShard(const char* index_name, const std::string& name,
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

Status HfReader::OpenIndex(const char* index_name) {
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
    tensors_[name] = {found->second, file, name};
  }
  return {};
}

// Names without the prefix get it.
void HfReader::SettlePrefix() {
  const std::string prefix(family_->optional_prefix);
  if (prefix.empty()) return;
  const auto first = tensors_.lower_bound(prefix);
  if (first != tensors_.end() && first->first.starts_with(prefix)) return;
  std::map<std::string, Stored> named;
  for (const auto& [name, stored] : tensors_) named[prefix + name] = stored;
  tensors_ = std::move(named);
}

// The stored tensor of a weight that belongs to the whole model, or null.
const Tensor* HfReader::FindWeight(WeightRole role) const {
  const auto found = tensors_.find(SourceOf(*family_, spec_, {role}).name);
  return found == tensors_.end() ? nullptr : &found->second.tensor;
}

// A stored head that differs from the embedding is used even if the config ties the two. CheckAll
// refuses a model whose config does not tie them and that has no stored head.
void HfReader::SettleHead() {
  if (!spec_.tied_head) return;
  if (layout_ != nullptr && IsPacked(MatrixOf({WeightRole::kHead}))) {
    LogWarning("{}: tie_word_embeddings is true but a quantized head is stored; it is used",
               folder_.string());
    spec_.tied_head = false;
    return;
  }
  const Tensor* head = FindWeight(WeightRole::kHead);
  const Tensor* embedding = FindWeight(WeightRole::kEmbedding);
  if (head == nullptr || embedding == nullptr) return;
  const bool same =
      head->dtype == embedding->dtype && head->shape == embedding->shape &&
      std::memcmp(head->data, embedding->data, static_cast<size_t>(head->NumBytes())) == 0;
  if (same) return;
  LogWarning("{}: tie_word_embeddings is true but the stored head differs; the stored one is used",
             folder_.string());
  spec_.tied_head = false;
}

// What is stored decides: tools leave out layers that the config's lists do not always name.
Status HfReader::SettleSchemes() {
  if (layout_ == nullptr) return {};
  std::vector<SchemeException> schemes;
  for (const WeightId& id : Products(spec_)) {
    TANDEM_ASSIGN_OR_RETURN(const QuantScheme scheme, ReadScheme(id));
    schemes.push_back({id.role, id.layer, scheme});
  }
  TANDEM_RETURN_IF_ERROR(CheckNames());
  return SetStoredSchemes(schemes, spec_);
}

bool HfReader::IsPacked(const StoredMatrix& matrix) const {
  const Tensor* elements = matrix.Find(layout_->elements());
  return elements != nullptr && !IsFloat(elements->dtype);
}

StoredMatrix HfReader::MatrixOf(const WeightId& id) const {
  const TensorSource source =
      SourceOf(*family_, spec_, {id.role, id.layer, WeightPart::kWeight, id.expert});
  const WeightRow& row = RowOf(id.role);
  const int64_t rows = source.rows.is_identity() ? row.rows(spec_, id.layer) : source.rows.of;
  return {*this, source.name.substr(0, source.name.rfind(kWeightSuffix)), rows,
          row.columns(spec_, id.layer), source.expert};
}

Result<QuantScheme> HfReader::ReadScheme(const WeightId& id) const {
  const WeightRole role = id.role;
  const StoredMatrix matrix = MatrixOf(id);
  if (!IsPacked(matrix)) {
    const bool is_left = matrix.Find(kWeightSuffix) != nullptr || !RowOf(role).quantizable;
    if (is_left) return QuantScheme{};
    return NeitherPackedNorPlain(matrix, *layout_);
  }
  const std::string place = matrix.PlaceOf(layout_->elements());
  const TensorSource source = SourceOf(*family_, spec_, id);
  if ((source.expert || source.transposed) && !layout_->stacks_experts()) {
    return Unimplemented(place +
                         ": quantized weights that are stacked or stored transposed are "
                         "not read");
  }
  const Tensor* bias = matrix.Find(RowOf(WeightPart::kBias).hf_suffix);
  if (bias != nullptr && !HasBias(spec_, role, id.layer) && AnyBitSet(*bias)) {
    return Unimplemented(matrix.PlaceOf(RowOf(WeightPart::kBias).hf_suffix) +
                         ": holds a bias, and config.json describes a model without");
  }
  TANDEM_ASSIGN_OR_RETURN(const QuantScheme scheme, layout_->Check(matrix, spec_.quantization));
  TANDEM_RETURN_IF_ERROR(BlockRows(source.rows, scheme.block_rows, place).status());
  return scheme;
}

// A tensor that is not known, or belongs to no product, could change the results.
Status HfReader::CheckNames() const {
  std::set<std::string_view> products;
  std::set<std::string> weights;  // also those whose names begin with a product's
  for (const WeightId& id : StoredWeights(spec_))
    weights.insert(SourceOf(*family_, spec_, id).name);
  std::vector<std::string> names;
  for (const WeightId& id : Products(spec_)) names.push_back(SourceOf(*family_, spec_, id).name);
  for (std::string_view name : names) products.insert(name.substr(0, name.rfind(kWeightSuffix)));
  // Weights of their own whose names begin with a product's: the correction of a router's scores.
  std::set<std::string> others;
  for (const WeightId& id : StoredWeights(spec_)) {
    if (RowOf(id.role).pack == WeightPack::kNone) {
      others.insert(SourceOf(*family_, spec_, id).name);
    }
  }
  for (const auto& [name, stored] : tensors_) {
    if (others.contains(name)) continue;
    const size_t dot = std::min(name.rfind('.'), name.size());
    const std::string_view suffix = std::string_view(name).substr(dot);
    const bool known = std::ranges::find(kProductSuffixes, suffix) != kProductSuffixes.end();
    const bool of_product = products.contains(std::string_view(name).substr(0, dot));
    if (of_product && !known && !weights.contains(name)) {
      return Unimplemented(PlaceOf(name) + " is none that quantized weights are known to have");
    }
    if (std::ranges::find(kOptionalSuffixes, suffix) == kOptionalSuffixes.end()) continue;
    if (!of_product) {
      return InvalidArgument(PlaceOf(name) + " belongs to no weight of this model");
    }
    const std::span<const std::string_view> read =
        layout_ == nullptr ? std::span<const std::string_view>() : layout_->optional_suffixes();
    if (std::ranges::find(read, suffix) == read.end()) {
      return Unimplemented(PlaceOf(name) + " is not read of weights in this format");
    }
  }
  return {};
}

// Tools name the scales of keys and values after the product, as its outputs' scale, after the
// attention that holds it, its cache or its fused product, or (one for both) kv_scale; from here on
// they have the source's name.
void HfReader::SettleCacheScales() {
  const std::optional<DType> described = spec_.cache_scales;
  spec_.cache_scales = DType::kF8E4M3;  // for the table to list the parts
  std::map<std::string, Stored> found;
  bool complete = true;
  for (const WeightId& id : StoredWeights(spec_)) {
    if (id.part != WeightPart::kCacheScale) continue;
    const std::string name = SourceOf(*family_, spec_, id).name;
    const size_t suffix = name.rfind('.');
    const std::string attention = name.substr(0, name.rfind('.', suffix - 1));
    const std::string scale = name.substr(suffix);
    auto stored = tensors_.find(name);
    for (const std::string& other :
         {attention + scale, attention + ".attn" + scale, attention + ".qkv_proj" + scale,
          name.substr(0, suffix) + ".output_scale", attention + ".kv_scale"}) {
      if (stored == tensors_.end()) stored = tensors_.find(other);
    }
    if (stored == tensors_.end()) {
      complete = false;
    } else {
      found[name] = stored->second;
    }
  }
  spec_.cache_scales = complete ? described : std::nullopt;
  if (spec_.cache_scales) {
    tensors_.merge(found);
  } else if (!found.empty()) {
    LogWarning("{}: scales of keys and values (\"{}\") are not used: {}", folder_.string(),
               found.begin()->first,
               complete ? "they are for a cache neither in fp8 nor in symmetric int8"
                        : "not every layer has both");
  }
}

// If the config names no type, the weights decide.
Status HfReader::SettleDType() {
  if (config_names_dtype_) return {};
  const Tensor* embedding = FindWeight(WeightRole::kEmbedding);
  if (embedding != nullptr && IsFloat(embedding->dtype)) spec_.dtype = embedding->dtype;
  return {};
}

const Tensor* HfReader::FindStored(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.tensor;
}

std::string HfReader::PlaceOf(const std::string& name) const {
  const auto found = tensors_.find(name);
  fs::path where = shards_.size() == 1 ? shards_.front()->path() : folder_;
  if (found != tensors_.end()) where = found->second.file->path();
  return where.string() + ": tensor \"" + name + "\"";
}

Result<Tensor> HfReader::Find(const TensorSource& source, const WeightId& id) const {
  const std::string where = PlaceOf(source.name);
  const Tensor* stored = FindStored(source.name);
  if (stored == nullptr) return NotFound(where + " is missing");
  const Tensor& tensor = *stored;
  if (IsScale(id.part) && source.expert) {
    return Unimplemented(where + ": scales of stacked experts are not read");
  }
  const Shape expected = StoredShape(source, WeightShape(spec_, id), tensor.shape);
  TANDEM_RETURN_IF_ERROR(CheckStored(tensor, id.part, expected, WeightDType(spec_, id), where));
  if (IsScale(id.part)) TANDEM_RETURN_IF_ERROR(CheckScaleValues(tensor, where));
  return tensor;
}

Status HfReader::CheckAll() const {
  for (const WeightId& id : StoredWeights(spec_)) {
    if (IsUnpacked(id)) continue;  // SettleSchemes has checked it
    const TensorSource source = SourceOf(*family_, spec_, id);
    const Status found = Find(source, id).status();
    if (found.ok()) continue;
    return {found.code(), found.message() + HintOfPacked(source.name)};
  }
  return {};
}

std::string HfReader::HintOfPacked(const std::string& weight) const {
  const std::string name = weight.substr(0, weight.rfind(kWeightSuffix));
  const auto* const packed = std::ranges::find_if(kPackedSuffixes, [&](const PackedSuffix& row) {
    return FindStored(name + std::string(row.suffix)) != nullptr;
  });
  if (layout_ != nullptr || packed == kPackedSuffixes.end()) return "";
  return "; " + QuotedTensorName(name + std::string(packed->suffix)) +
         " is there, of a weight that " + std::string(packed->tool) +
         " quantized, but config.json has no quantization_config: copy it, or the file that "
         "describes the quantization, from where the weights are from";
}

bool HfReader::IsUnpacked(const WeightId& id) const {
  const bool of_quantized = id.part != WeightPart::kBias && id.part != WeightPart::kCacheScale;
  return of_quantized && !SchemeOf(spec_, id.role, id.layer).is_plain();
}

Status HfReader::Verify(Stored& stored) {
  if (!stored.verified) TANDEM_RETURN_IF_ERROR(stored.file->Verify(stored.name));
  stored.verified = true;
  return {};
}

Status HfReader::VerifyPacked(const std::string& name) {
  for (auto stored = tensors_.lower_bound(name);
       stored != tensors_.end() && stored->first.starts_with(name); ++stored) {
    const std::string_view suffix = std::string_view(stored->first).substr(name.size());
    if (suffix.starts_with('.') || suffix.starts_with('_')) {
      TANDEM_RETURN_IF_ERROR(Verify(stored->second));
    }
  }
  return {};
}

Result<Tensor> HfReader::GetUnpacked(const WeightId& id) {
  const StoredMatrix matrix = MatrixOf(id);
  TANDEM_RETURN_IF_ERROR(VerifyPacked(matrix.name()));
  const QuantScheme scheme = SchemeOf(spec_, id.role, id.layer);
  TANDEM_ASSIGN_OR_RETURN(const Tensor all, layout_->Unpack(matrix, scheme, id.part, scratch_));
  TensorSource source = SourceOf(*family_, spec_, id);
  source.expert = std::nullopt;  // the matrix is the expert's, with rows in order
  source.transposed = false;
  if (RowOf(id.part).extent == WeightPartRow::Extent::kBlocks) {
    TANDEM_ASSIGN_OR_RETURN(source.rows, BlockRows(source.rows, scheme.block_rows, source.name));
  }
  return TakeTensor(all, source, WeightShape(spec_, id), scratch_);
}

Result<Tensor> HfReader::Get(const WeightId& id) {
  const WeightId held = StoredId(spec_, id);
  if (IsUnpacked(held)) return GetUnpacked(held);
  const TensorSource source = SourceOf(*family_, spec_, held);
  const Shape shape = WeightShape(spec_, held);
  TANDEM_ASSIGN_OR_RETURN(Tensor stored, Find(source, held));
  TANDEM_RETURN_IF_ERROR(Verify(tensors_.at(source.name)));
  if (IsScale(id.part)) {
    const Shape all = StoredShape(source, shape, stored.shape);
    TANDEM_ASSIGN_OR_RETURN(stored, ToFloats(stored, all, scratch_));
  }
  TANDEM_ASSIGN_OR_RETURN(const Tensor taken, TakeTensor(stored, source, shape, scratch_));
  return AsDType(taken, WeightDType(spec_, held), scratch_);
}

}  // namespace tandem
