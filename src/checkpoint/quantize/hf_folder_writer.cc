#include "checkpoint/quantize/hf_folder_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "checkpoint/stored/stored_schemes.h"
#include "model/tensor_source.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;

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

// The products that are stored as they are: the head and the routers of experts.
Json PlainProducts(const ModelSpec& spec) {
  Json names = Json::array({"lm_head"});
  for (const WeightId& id : Products(spec)) {
    if (id.role == WeightRole::kHead || !SchemeOf(spec, id.role, id.layer).is_plain()) continue;
    const std::string name = StandardSource(spec, id).name;
    names.push_back(name.substr(0, name.rfind('.')));
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

// A tensor of the file: what is stored of a weight's part.
struct Output {
  TensorInfo info;
  WeightId id;
  enum class Kind : uint8_t { kStored, kPairsAsWords, kShape } kind = Kind::kStored;
};

void AddOutputs(const ModelSpec& spec, const WeightId& id, std::vector<Output>& out) {
  std::string name = StandardSource(spec, id).name;
  const DType dtype = WeightDType(spec, id);
  Shape shape = WeightShape(spec, id);
  const QuantScheme scheme = SchemeOf(spec, id.role, id.layer);
  const bool packed = id.part == WeightPart::kWeight && !scheme.is_plain() &&
                      std::string_view(FormatName(scheme)) == "pack-quantized";
  if (packed) {
    out.push_back({{name + "_packed",
                    DType::kI32,
                    {shape[0], (shape[1] * static_cast<int64_t>(SizeOf(dtype)) + 3) / 4}},
                   id,
                   Output::Kind::kPairsAsWords});
    out.push_back({{name + "_shape", DType::kI64, {2}}, id, Output::Kind::kShape});
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
  out.push_back({{std::move(name), dtype, shape}, id});
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

Status AppendOutput(WeightSource& source, const Output& output, SafetensorsWriter& writer) {
  const ModelSpec& spec = source.spec();
  const Shape& shape = output.info.shape;
  if (output.kind == Output::Kind::kShape) {
    const WeightRow& row = RowOf(output.id.role);
    int64_t sizes[] = {row.rows(spec, output.id.layer), row.columns(spec, output.id.layer)};
    return writer.Append({sizes, DType::kI64, {2}, {}});
  }
  TANDEM_ASSIGN_OR_RETURN(Tensor tensor, source.Get(output.id));
  if (output.kind == Output::Kind::kPairsAsWords) {
    std::vector<std::byte> words = AsWords(tensor, shape);
    return writer.Append({words.data(), DType::kI32, shape, {}});
  }
  if (output.id.part == WeightPart::kCacheScale) {
    float largest = *std::max_element(tensor.As<float>(), tensor.As<float>() + tensor.dim(0));
    return writer.Append({&largest, DType::kF32, {1}, {}});
  }
  tensor.shape = shape;
  return writer.Append(tensor);
}

int64_t BytesOf(const TensorInfo& info) {
  return info.shape.NumElements() * static_cast<int64_t>(SizeOf(info.dtype));
}

}  // namespace

Status WriteHfFolder(WeightSource& source, const fs::path& model_dir, const fs::path& folder,
                     const WriteProgress& progress) {
  const ModelSpec& spec = source.spec();
  std::vector<std::vector<Output>> shards(1);
  int64_t in_shard = 0, total = 0;
  for (const WeightId& id : StoredWeights(spec)) {
    std::vector<Output> outputs;
    AddOutputs(spec, id, outputs);
    for (Output& output : outputs) {
      const int64_t bytes = BytesOf(output.info);
      if (in_shard > 0 && in_shard + bytes > kShardBytes) {
        shards.emplace_back();
        in_shard = 0;
      }
      in_shard += bytes;
      total += bytes;
      shards.back().push_back(std::move(output));
    }
  }
  Json weight_map;
  int64_t written = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    const std::string file = shards.size() == 1 ? "model.safetensors" : name;
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
    TANDEM_RETURN_IF_ERROR(
        WriteFileAtomically(folder / "model.safetensors.index.json", index.dump(2) + "\n"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(model_dir / "config.json"));
  Json config = Json::parse(text);  // the source has read it
  config["torch_dtype"] = DTypeName(spec.dtype);
  if (config.contains("dtype")) config["dtype"] = DTypeName(spec.dtype);  // its newer name
  // A head that differs from the embedding is stored, whatever the source's config says.
  if (config.value("tie_word_embeddings", false)) config["tie_word_embeddings"] = spec.tied_head;
  if (!spec.quantization.is_plain() || spec.cache_scales) {
    config["quantization_config"] = QuantizationConfig(spec);
  }
  return WriteFileAtomically(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace tandem
