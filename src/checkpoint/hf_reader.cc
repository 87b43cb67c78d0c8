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
Status NeitherPackedNorPlain(const StoredMatrix& matrix, const Layout& layout) {
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
  TANDEM_ASSIGN_OR_RETURN(reader->tensors_,
                          HfTensors::Open(folder, reader->family_->optional_prefix));
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

// The stored tensor of a weight that belongs to the whole model, or null.
const Tensor* HfReader::FindWeight(WeightRole role) const {
  return tensors_->FindStored(SourceOf(*family_, spec_, {role}).name);
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
  return {*tensors_, source.name.substr(0, source.name.rfind(kWeightSuffix)), rows,
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
  // Also weights of their own whose names begin with a product's: the correction of a router's
  // scores.
  std::set<std::string, std::less<>> weights;
  for (const WeightId& id : StoredWeights(spec_)) {
    weights.insert(SourceOf(*family_, spec_, id).name);
  }
  std::vector<std::string> names;
  for (const WeightId& id : Products(spec_)) names.push_back(SourceOf(*family_, spec_, id).name);
  for (std::string_view name : names) products.insert(name.substr(0, name.rfind(kWeightSuffix)));
  for (const std::string_view name : tensors_->Names()) {
    const size_t dot = std::min(name.rfind('.'), name.size());
    const std::string_view suffix = name.substr(dot);
    const auto place = [&] { return tensors_->PlaceOf(std::string(name)); };
    const bool known = std::ranges::find(kProductSuffixes, suffix) != kProductSuffixes.end();
    const bool of_product = products.contains(name.substr(0, dot));
    if (of_product && !known && !weights.contains(name)) {
      return Unimplemented(place() + " is none that quantized weights are known to have");
    }
    if (std::ranges::find(kOptionalSuffixes, suffix) == kOptionalSuffixes.end()) continue;
    if (!of_product) {
      return InvalidArgument(place() + " belongs to no weight of this model");
    }
    const std::span<const std::string_view> read =
        layout_ == nullptr ? std::span<const std::string_view>() : layout_->optional_suffixes();
    if (std::ranges::find(read, suffix) == read.end()) {
      return Unimplemented(place() + " is not read of weights in this format");
    }
  }
  return {};
}

// Tools name the scales of keys and values after the product, as its outputs' scale, after the
// attention that holds it, its cache or its fused product, or (one for both) kv_scale; from here on
// they have the source's name.
void HfReader::SettleCacheScales() {
  const std::optional<DType> described = spec_.cache_scales;
  spec_.cache_scales = DType::kF8E4M3;       // for the table to list the parts
  std::map<std::string, std::string> found;  // stored names by the source's
  bool complete = true;
  for (const WeightId& id : StoredWeights(spec_)) {
    if (id.part != WeightPart::kCacheScale) continue;
    const std::string name = SourceOf(*family_, spec_, id).name;
    const size_t suffix = name.rfind('.');
    const std::string attention = name.substr(0, name.rfind('.', suffix - 1));
    const std::string scale = name.substr(suffix);
    const auto scale_of = [&](const char* part) { return (attention + part).append(scale); };
    const std::array names = {name,
                              scale_of(""),
                              scale_of(".attn"),
                              scale_of(".qkv_proj"),
                              name.substr(0, suffix) + ".output_scale",
                              attention + ".kv_scale"};
    const auto* const stored = std::ranges::find_if(
        names, [&](const std::string& other) { return tensors_->FindStored(other) != nullptr; });
    if (stored == names.end()) {
      complete = false;
    } else {
      found[name] = *stored;
    }
  }
  spec_.cache_scales = complete ? described : std::nullopt;
  if (spec_.cache_scales) {
    for (const auto& [name, stored] : found) tensors_->AddName(name, stored);
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

Result<Tensor> HfReader::Find(const TensorSource& source, const WeightId& id) const {
  const std::string where = tensors_->PlaceOf(source.name);
  const Tensor* stored = tensors_->FindStored(source.name);
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
    return tensors_->FindStored(name + std::string(row.suffix)) != nullptr;
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

Result<Tensor> HfReader::GetUnpacked(const WeightId& id) {
  const StoredMatrix matrix = MatrixOf(id);
  TANDEM_RETURN_IF_ERROR(tensors_->VerifyPacked(matrix.name()));
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
  TANDEM_RETURN_IF_ERROR(tensors_->Verify(source.name));
  if (IsScale(id.part)) {
    const Shape all = StoredShape(source, shape, stored.shape);
    TANDEM_ASSIGN_OR_RETURN(stored, ToFloats(stored, all, scratch_));
  }
  TANDEM_ASSIGN_OR_RETURN(const Tensor taken, TakeTensor(stored, source, shape, scratch_));
  return AsDType(taken, WeightDType(spec_, held), scratch_);
}

}  // namespace tandem
