#include "checkpoint/hf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "checkpoint/hf_reader.h"
#include "checkpoint/stored/stored_schemes.h"
#include "model/families/families.h"
#include "model/families/own_keys.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;

constexpr const char* kOneShard = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kQuantizationKey = "quantization_config";
constexpr int64_t kShardBytes = int64_t{5} << 30;

// compressed-tensors' name of how elements lie in the file.
const char* FormatName(const QuantScheme& scheme) {
  switch (scheme.element) {
    case Element::kInt8:
      return scheme.inputs == Inputs::kPlain ? "pack-quantized" : "int-quantized";
    case Element::kInt4:
      return "pack-quantized";
    default:
      return "float-quantized";
  }
}

Json Arguments(bool floats, int bits, const char* strategy, bool dynamic) {
  return {{"num_bits", bits},
          {"type", floats ? "float" : "int"},
          {"symmetric", true},
          {"strategy", strategy},
          {"dynamic", dynamic}};
}

Json WeightGroup(const QuantScheme& scheme) {
  const bool floats = scheme.element == Element::kFp8E4M3;
  Json weights = Arguments(floats, scheme.element == Element::kInt4 ? 4 : 8,
                           scheme.block_columns == 0 ? "channel" : "group", /*dynamic=*/false);
  weights["group_size"] = scheme.block_columns == 0 ? Json(nullptr) : Json(scheme.block_columns);
  Json inputs = nullptr;
  if (scheme.inputs != Inputs::kPlain) {
    const bool dynamic = scheme.inputs == Inputs::kDynamic;
    inputs = Arguments(/*floats=*/scheme.element != Element::kInt8, 8, dynamic ? "token" : "tensor",
                       dynamic);
  }
  // The format in the group too: readers infer the wrong one for int4 weights with quantized
  // inputs.
  return {{"targets", {"Linear"}},
          {"format", FormatName(scheme)},
          {"weights", weights},
          {"input_activations", inputs},
          {"output_activations", nullptr}};
}

TensorSource SourceOf(const ModelSpec& spec, const WeightId& id) {
  return SourceOf(*FamilyOf(spec), spec, id);
}

// The products that are stored as they are: the head and the routers of experts.
Json PlainProducts(const ModelSpec& spec) {
  std::vector<std::string> names = {"lm_head"};
  for (const WeightId& id : Products(spec)) {
    if (!SchemeOf(spec, id.role, id.layer).is_plain()) continue;
    const std::string tensor = SourceOf(spec, id).name;
    std::string name = tensor.substr(0, tensor.rfind('.'));
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

Json QuantizationConfig(const ModelSpec& spec) {
  const QuantScheme& scheme = spec.quantization;
  Json config = {{"quant_method", "compressed-tensors"},
                 {"format", scheme.is_plain() ? "dense" : FormatName(scheme)},
                 {"quantization_status", "compressed"},
                 {"config_groups", Json::object()},
                 {"ignore", scheme.is_plain() ? Json::array({"lm_head"}) : PlainProducts(spec)}};
  if (!scheme.is_plain()) config["config_groups"]["group_0"] = WeightGroup(scheme);
  if (spec.cache_scales) {
    config["kv_cache_scheme"] = Arguments(*spec.cache_scales == DType::kF8E4M3, 8, "tensor", false);
  }
  return config;
}

// Whether a quantization_config has the keys that QuantizationConfig gives it, and no others: those
// of other tools have a version.
bool IsOurs(const Json& config) {
  if (!config.is_object() || config.value("quantization_status", "") != "compressed") return false;
  constexpr std::string_view kKeys[] = {"quant_method",  "format", "quantization_status",
                                        "config_groups", "ignore", "kv_cache_scheme"};
  return std::ranges::all_of(config.items(), [&](const auto& item) {
    return std::ranges::find(kKeys, item.key()) != std::end(kKeys);
  });
}

// "model.safetensors", "model-00001-of-00002.safetensors"
bool IsShard(std::string_view name) {
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  const auto fits = [](char shown, char expected) {
    return expected == '#' ? shown >= '0' && shown <= '9' : shown == expected;
  };
  return name == kOneShard || std::ranges::equal(name, kPattern, fits);
}

bool IsOurFolder(const fs::path& folder) {
  const auto text = ReadTextFile(folder / kConfigFile);
  if (!text.ok()) return false;
  const Json config = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object() || !config.contains(kQuantizationKey)) return false;
  if (!IsOurs(config[kQuantizationKey])) return false;
  int shards = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!IsShard(entry.path().filename().string())) continue;
    const auto file = SafetensorsFile::Open(entry.path());
    if (!file.ok() || !(*file)->has_checksums()) return false;
    ++shards;
  }
  return shards > 0;
}

// A tensor of the file: what is stored of the parts of one weight or, fused, of several.
struct Output {
  TensorInfo info;
  std::vector<WeightId> ids;
  enum class Kind : uint8_t { kStored, kPairsAsWords, kShape } kind = Kind::kStored;
  Shape stored;  // of the parts together, as our files have them
};

// The rows of a matrix, all those that are fused with it included.
int64_t AllRows(const TensorSource& source, int64_t rows) {
  return source.rows.is_identity() ? rows : source.rows.of;
}

void AddOutputs(const ModelSpec& spec, const WeightId& id, std::vector<Output>& out) {
  const TensorSource source = SourceOf(spec, id);
  std::string name = source.name;
  const DType dtype = WeightDType(spec, id);
  Shape shape = WeightShape(spec, id);
  shape = shape.rank() == 1 ? Shape{AllRows(source, shape[0])}
                            : Shape{AllRows(source, shape[0]), shape[1]};
  const Shape stored = shape;
  const QuantScheme scheme = SchemeOf(spec, id.role, id.layer);
  const bool packed = id.part == WeightPart::kWeight && !scheme.is_plain() &&
                      std::string_view(FormatName(scheme)) == "pack-quantized";
  if (packed) {
    out.push_back({{name + "_packed",
                    DType::kI32,
                    {shape[0], (shape[1] * static_cast<int64_t>(SizeOf(dtype)) + 3) / 4}},
                   {id},
                   Output::Kind::kPairsAsWords,
                   stored});
    out.push_back({{name + "_shape", DType::kI64, {2}}, {id}, Output::Kind::kShape, stored});
    return;
  }
  if (id.part == WeightPart::kScale && shape.rank() == 1) shape = {shape[0], 1};
  // Of the attention, not of the weights, and one for all heads, as the readers of these folders
  // take it: "self_attn.k_proj.k_scale" becomes "self_attn.k_scale".
  if (id.part == WeightPart::kCacheScale) {
    shape = {1};
    const size_t suffix = name.rfind('.');
    const size_t weight = name.rfind('.', suffix - 1);
    name.erase(weight, suffix - weight);
  }
  out.push_back({{std::move(name), dtype, shape}, {id}, Output::Kind::kStored, stored});
}

// Every tensor of the file, in the order of a forward pass.
std::vector<Output> OutputsOf(const ModelSpec& spec) {
  std::vector<Output> outputs;
  std::map<std::string, size_t> places;
  for (const WeightId& id : StoredWeights(spec)) {
    std::vector<Output> of_weight;
    AddOutputs(spec, id, of_weight);
    for (Output& output : of_weight) {
      const auto [place, is_new] = places.emplace(output.info.name, outputs.size());
      if (is_new) {
        outputs.push_back(std::move(output));
      } else {
        outputs[place->second].ids.push_back(id);
      }
    }
  }
  return outputs;
}

// int8 elements are packed with an offset of 128, as the readers expect; pairs of int4 with their
// offset of 8 lie as they are. Rows end with zeros up to a whole word.
std::vector<std::byte> AsWords(const Tensor& stored, const Shape& words) {
  std::vector<std::byte> bytes(static_cast<size_t>(words.NumElements()) * sizeof(int32_t));
  const auto row_bytes = static_cast<size_t>(stored.dim(1));
  const auto pitch = static_cast<size_t>(words[1]) * sizeof(int32_t);
  const uint8_t offset = stored.dtype == DType::kI8 ? 128 : 0;
  const auto* from = static_cast<const uint8_t*>(stored.data);
  for (size_t row = 0; row < static_cast<size_t>(stored.dim(0)); ++row) {
    for (size_t i = 0; i < row_bytes; ++i) {
      bytes[row * pitch + i] =
          static_cast<std::byte>(static_cast<uint8_t>(from[row * row_bytes + i] + offset));
    }
  }
  return bytes;
}

// The weights of a fused tensor, each row where the family has it. `memory` holds it, if it is not
// a weight as it is.
Result<Tensor> Fused(WeightSource& source, const Output& output, std::vector<std::byte>& memory) {
  const ModelSpec& spec = source.spec();
  if (SourceOf(spec, output.ids.front()).rows.is_identity()) return source.Get(output.ids.front());
  const Tensor all{nullptr, WeightDType(spec, output.ids.front()), output.stored, {}};
  memory.resize(static_cast<size_t>(all.NumBytes()));
  const size_t row_bytes = memory.size() / static_cast<size_t>(all.dim(0));
  int64_t rows = 0;
  for (const WeightId& id : output.ids) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor part, source.Get(id));
    const RowMap map = SourceOf(spec, id).rows;
    const auto* from = static_cast<const std::byte*>(part.data);
    for (int64_t row = 0; row < part.dim(0); ++row, from += row_bytes) {
      std::memcpy(&memory[static_cast<size_t>(map.StoredRow(row)) * row_bytes], from, row_bytes);
    }
    rows += part.dim(0);
    source.Release();
  }
  // A table of positions may begin with rows that no token stands at (OPT): they stay zero.
  const bool complete = rows == all.dim(0) || output.ids.front().role == WeightRole::kPositions;
  TANDEM_CHECK(complete, output.info.name + " has rows of no weight");
  return Tensor{memory.data(), all.dtype, all.shape, {}};
}

Status AppendOutput(WeightSource& source, const Output& output, SafetensorsWriter& writer) {
  const ModelSpec& spec = source.spec();
  const WeightId& first = output.ids.front();
  const Shape& shape = output.info.shape;
  if (output.kind == Output::Kind::kShape) {
    int64_t sizes[] = {output.stored[0], RowOf(first.role).columns(spec, first.layer)};
    return writer.Append({sizes, DType::kI64, {2}, {}});
  }
  if (first.part == WeightPart::kInputScale) {
    std::vector<WeightRole> roles;
    for (const WeightId& id : output.ids) roles.push_back(id.role);
    TANDEM_ASSIGN_OR_RETURN(float scale, LargestInputScale(source, roles, first));
    return writer.Append({&scale, DType::kF32, {1}, {}});
  }
  std::vector<std::byte> memory;
  TANDEM_ASSIGN_OR_RETURN(Tensor tensor, Fused(source, output, memory));
  if (output.kind == Output::Kind::kPairsAsWords) {
    std::vector<std::byte> words = AsWords(tensor, shape);
    return writer.Append({words.data(), DType::kI32, shape, {}});
  }
  if (first.part == WeightPart::kCacheScale) {
    float largest = *std::max_element(tensor.As<float>(), tensor.As<float>() + tensor.dim(0));
    return writer.Append({&largest, DType::kF32, {1}, {}});
  }
  tensor.shape = shape;
  return writer.Append(tensor);
}

// The Python files that a config's auto_map names, and those that they import: all that there are.
Status CopyCode(const fs::path& from, const fs::path& to) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(from, error)) {
    if (entry.path().extension() != ".py" || !entry.is_regular_file(error)) continue;
    TANDEM_ASSIGN_OR_RETURN(const std::string code, ReadTextFile(entry.path()));
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(to / entry.path().filename(), code));
  }
  return {};
}

Result<std::string> ConfigText(const ModelFolder& model) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(model.path / kConfigFile));
  return ConfigWithOptions(text, model.options, AddedTokens(model.path));
}

int64_t BytesOf(const TensorInfo& info) {
  return info.shape.NumElements() * static_cast<int64_t>(SizeOf(info.dtype));
}

}  // namespace

OutputKind HfFolders() {
  return {.is_weights = [](std::string_view name) { return IsShard(name) || name == kIndexFile; },
          .is_result = IsOurFolder,
          .result = "quantized folder that Tandem wrote"};
}

Status CheckHfFolder(const ModelSpec& spec, const ModelFolder& model) {
  const Family* const family = FamilyOf(spec);
  const auto refused = [&](const std::string& why) {
    return Unimplemented("a Hugging Face folder of " + spec.architecture + " is not written: " +
                         why + "; --export_format tensorrt_llm writes a checkpoint");
  };
  if (family == nullptr) return refused("the config does not tell the family");
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(model.path / kConfigFile));
  const Json own = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (own.contains("text_config"))
    return refused("its folders hold other models beside the text's");
  for (const WeightId& id : Products(spec)) {
    const TensorSource source = SourceOf(*family, spec, id);
    if (source.expert) return refused("its folders keep all experts of a layer in one tensor");
    if (source.transposed) return refused("its folders keep matrices transposed");
    const int64_t group = SchemeOf(spec, id.role, id.layer).block_columns;
    const int64_t columns = RowOf(id.role).columns(spec, id.layer);
    if (group > 0 && columns % group != 0) {
      return refused(
          fmt::format("the {} columns of {} are no multiple of the groups of {}, which "
                      "the readers of these folders need",
                      columns, source.name, group));
    }
  }
  const auto written = ConfigText(model);
  return written.status().code() == Code::kUnimplemented ? refused(written.status().message())
                                                         : written.status();
}

Status WriteHfFolder(WeightSource& source, const ModelFolder& model_folder, const fs::path& folder,
                     const WriteProgress& progress) {
  const ModelSpec& spec = source.spec();
  std::vector<std::vector<Output>> shards(1);
  int64_t in_shard = 0, total = 0;
  for (Output& output : OutputsOf(spec)) {
    const int64_t bytes = BytesOf(output.info);
    if (in_shard > 0 && in_shard + bytes > kShardBytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    in_shard += bytes;
    total += bytes;
    shards.back().push_back(std::move(output));
  }
  Json weight_map;
  int64_t written = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    const std::string file = shards.size() == 1 ? kOneShard : name;
    std::vector<TensorInfo> infos;
    for (const Output& output : shards[i]) {
      infos.push_back(output.info);
      weight_map[output.info.name] = file;
    }
    TANDEM_ASSIGN_OR_RETURN(const auto writer,
                            SafetensorsWriter::Create(folder / file, infos, {{"format", "pt"}}));
    for (const Output& output : shards[i]) {
      TANDEM_RETURN_IF_ERROR(AppendOutput(source, output, *writer));
      source.Release();
      written += BytesOf(output.info);
      if (!progress) continue;
      TANDEM_RETURN_IF_ERROR(progress(static_cast<double>(written) / static_cast<double>(total)));
    }
    TANDEM_RETURN_IF_ERROR(writer->Commit());
  }
  TANDEM_RETURN_IF_ERROR(source.Finish());
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(folder / kIndexFile, index.dump(2) + "\n"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ConfigText(model_folder));
  Json config = Json::parse(text);  // the source has read it
  if (config.contains("auto_map")) {
    TANDEM_RETURN_IF_ERROR(CopyCode(model_folder.path, folder));
  }
  config["torch_dtype"] = DTypeName(spec.dtype);
  if (config.contains("dtype")) config["dtype"] = DTypeName(spec.dtype);  // its newer name
  // A head that differs from the embedding is stored, whatever the source's config says.
  if (!spec.tied_head) config["tie_word_embeddings"] = false;
  if (!spec.quantization.is_plain() || spec.cache_scales) {
    config[kQuantizationKey] = QuantizationConfig(spec);
  }
  return WriteFileAtomically(folder / kConfigFile, config.dump(2) + "\n");
}

}  // namespace tandem
