#include "model/hf_quantization.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>

#include "model/hf_config.h"

namespace tandem {
namespace {

using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;

// The names of a table's rows, for messages.
template <typename Table>
std::string Names(const Table& table) {
  std::string names;
  for (const auto& row : table) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

template <typename Table>
void RefuseUnlisted(const JsonFields& json, std::string_view key, const Table& table) {
  Refuse(json, key, "; supported are " + Names(table));
}

constexpr std::string_view kTakeOtherOrder =
    "; its weights are in the order of a kernel: take the model in the format gptq or awq";

// How a tool lays weights out.
template <typename Table>
void RefuseFormat(const JsonFields& json, std::string_view key, const Table& table) {
  if (json.Text(key).starts_with("marlin")) return Refuse(json, key, kTakeOtherOrder);
  RefuseUnlisted(json, key, table);
}

// Columns that share a scale: the key's number, or 0 for all.
int64_t ReadGroupSize(const JsonFields& json, std::string_view key) {
  const int64_t size = json.Int(key);
  if (size == -1) return 0;
  if (size >= 1 && size <= int64_t{1} << 20) return size;
  Refuse(json, key, "; it must be -1 or a positive number of columns");
  return 0;
}

// A scale for each row, or for each group of columns in a row.
QuantScheme RowScheme(Element element, int64_t group, Inputs inputs = Inputs::kPlain) {
  return {.element = element, .block_rows = 1, .block_columns = group, .inputs = inputs};
}

QuantScheme BlockScheme(const JsonFields& json, std::string_view key, Inputs inputs) {
  const std::vector<int64_t> block = json.Ints(key);
  const auto fits = [](int64_t size) { return size >= 1 && size <= int64_t{1} << 20; };
  if (block.size() != 2 || !std::ranges::all_of(block, fits)) {
    Refuse(json, key, "; it must be the rows and columns of a block, as [128, 128]");
    return {};
  }
  return {.element = Element::kFp8E4M3,
          .block_rows = block[0],
          .block_columns = block[1],
          .inputs = inputs};
}

HfQuantization ReadGptq(const JsonFields& json) {
  struct Format {
    std::string_view name;
    Packing packing;
  };
  constexpr std::array kFormats = {Format{"gptq", Packing::kGptq},
                                   Format{"gptq_v2", Packing::kGptqV2}};
  HfQuantization read;
  const int64_t bits = json.Int("bits");
  if (bits != 4 && bits != 8) Refuse(json, "bits", "; supported are 4 and 8");
  read.scheme =
      RowScheme(bits == 8 ? Element::kInt8 : Element::kInt4, ReadGroupSize(json, "group_size"));
  read.scheme.zero_points = !json.Bool("sym", true);
  read.scheme.input_order = json.Bool("desc_act", false);
  const char* key = json.Has("checkpoint_format") ? "checkpoint_format" : "format";
  const auto* const format =
      std::ranges::find(kFormats, json.Text(key, kFormats[0].name), &Format::name);
  if (format == kFormats.end()) {
    RefuseFormat(json, key, kFormats);
  } else {
    read.packing = format->packing;
  }
  if (json.Bool("is_marlin_format", false)) {
    Refuse(json, "is_marlin_format", kTakeOtherOrder);
  }
  if (json.Text("pack_dtype", "int32") != "int32") {
    Refuse(json, "pack_dtype", "; it must be int32");
  }
  if (const auto dynamic = json.Object("dynamic")) {
    for (const std::string& pattern : dynamic->Keys()) {
      // "-:" leaves modules out: the stored weights show it.
      if (!pattern.starts_with("-")) dynamic->Fail(pattern, "settings by module are not supported");
    }
  }
  return read;
}

HfQuantization ReadAwq(const JsonFields& json) {
  struct Version {
    std::string_view name;
    Packing packing;
  };
  constexpr std::array kVersions = {Version{"gemm", Packing::kAwqGemm},
                                    Version{"gemv", Packing::kAwqGemv}};
  const char* bits = json.Has("bits") ? "bits" : "w_bit";
  if (json.Int(bits) != 4) Refuse(json, bits, "; it must be 4");
  HfQuantization read;
  read.scheme = RowScheme(
      Element::kInt4, ReadGroupSize(json, json.Has("group_size") ? "group_size" : "q_group_size"));
  read.scheme.zero_points = json.Bool("zero_point", true);
  std::string name = json.Text("version", "gemm");
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto* const version = std::ranges::find(kVersions, name, &Version::name);
  if (version == kVersions.end()) {
    RefuseFormat(json, "version", kVersions);
  } else {
    read.packing = version->packing;
  }
  return read;
}

// Formats of compressed-tensors: what their weights may be.
struct CompressedFormat {
  std::string_view name;
  Packing packing;
  bool floats = false;
  bool integers = false;
  bool four_bits = false;
  bool eight_bits = false;
};
constexpr std::array kCompressedFormats = {
    CompressedFormat{
        .name = "float-quantized", .packing = Packing::kBytes, .floats = true, .eight_bits = true},
    CompressedFormat{
        .name = "int-quantized", .packing = Packing::kBytes, .integers = true, .eight_bits = true},
    CompressedFormat{.name = "naive-quantized",
                     .packing = Packing::kBytes,
                     .floats = true,
                     .integers = true,
                     .eight_bits = true},
    CompressedFormat{.name = "pack-quantized",
                     .packing = Packing::kPackQuantized,
                     .integers = true,
                     .four_bits = true,
                     .eight_bits = true},
    CompressedFormat{.name = "nvfp4-pack-quantized",
                     .packing = Packing::kNvFp4Packed,
                     .floats = true,
                     .four_bits = true},
    CompressedFormat{.name = "mxfp4-pack-quantized",
                     .packing = Packing::kMxFp4Packed,
                     .floats = true,
                     .four_bits = true},
};

Element ReadElement(const JsonFields& weights, const CompressedFormat& format) {
  const int64_t bits = weights.Int("num_bits");
  if (!(bits == 4 && format.four_bits) && !(bits == 8 && format.eight_bits)) {
    Refuse(weights, "num_bits", " in the format " + std::string(format.name));
  }
  const std::string type = weights.Text("type");
  const bool floats = type == "float";
  if (!(floats ? format.floats : type == "int" && format.integers)) {
    Refuse(weights, "type", " in the format " + std::string(format.name));
  }
  if (floats) return bits == 4 ? Element::kFp4E2M1 : Element::kFp8E4M3;
  return bits == 4 ? Element::kInt4 : Element::kInt8;
}

Inputs ReadInputs(const JsonFields& group, Element element) {
  // Products with weights in fp4 are computed with inputs as they are.
  if (element == Element::kFp4E2M1) return Inputs::kPlain;
  const auto inputs = group.Object("input_activations");
  if (!inputs) return Inputs::kPlain;
  const bool integers = element == Element::kInt8;
  if (inputs->Int("num_bits") != 8) Refuse(*inputs, "num_bits", "; it must be 8");
  if (inputs->Text("type") != (integers ? "int" : "float")) {
    Refuse(*inputs, "type", integers ? "; it must be int" : "; it must be float");
  }
  const bool dynamic = inputs->Bool("dynamic", false);
  const std::string strategy = inputs->Text("strategy");
  const bool fits = dynamic ? strategy == "token" || strategy == "group" : strategy == "tensor";
  if (!fits) {
    Refuse(*inputs, "strategy",
           dynamic ? "; dynamic scales are by token or group" : "; a static scale is of a tensor");
  }
  if (!dynamic) return Inputs::kStatic;
  // Zero points of inputs are computed with as inputs that are not rounded.
  return inputs->Bool("symmetric", true) ? Inputs::kDynamic : Inputs::kPlain;
}

HfQuantization ReadGroup(const JsonFields& group, const CompressedFormat& format) {
  const auto weights = group.Object("weights");
  if (!weights) {
    group.Fail("weights", "is missing");
    return {};
  }
  const Element element = ReadElement(*weights, format);
  if (group.Has("output_activations")) Refuse(group, "output_activations", "");
  const Inputs inputs = ReadInputs(group, element);
  const std::string strategy = weights->Text("strategy");
  HfQuantization read;
  read.packing = format.packing;
  if (strategy == "block" && element == Element::kFp8E4M3) {
    read.scheme = BlockScheme(*weights, "block_structure", inputs);
  } else if (strategy == (format.packing == Packing::kNvFp4Packed ? "tensor_group" : "group")) {
    read.scheme = RowScheme(element, ReadGroupSize(*weights, "group_size"), inputs);
  } else if (element != Element::kFp4E2M1 && (strategy == "tensor" || strategy == "channel")) {
    read.scheme = RowScheme(element, 0, inputs);
  } else {
    Refuse(*weights, "strategy", " in the format " + std::string(format.name));
  }
  read.scheme.zero_points = !weights->Bool("symmetric", true);
  return read;
}

HfQuantization ReadCompressedTensors(const JsonFields& json) {
  if (const auto transforms = json.Object("transform_config");
      transforms && !transforms->Keys().empty()) {
    Refuse(json, "transform_config", "; save the model without transforms");
  }
  if (const auto sparsity = json.Object("sparsity_config");
      sparsity && sparsity->Text("format", "dense") != "dense") {
    Refuse(*sparsity, "format", "; it must be dense");
  }
  const auto groups = json.Object("config_groups");
  // Keys and values alone may be quantized.
  if (groups && groups->Keys().empty() && json.Has("kv_cache_scheme")) return {};
  if (!groups || groups->Keys().empty()) {
    json.Fail("config_groups", "is missing");
    return {};
  }
  std::optional<HfQuantization> all;
  for (const std::string& name : groups->Keys()) {
    const auto group = groups->Object(name);
    if (!group) continue;
    const JsonFields& where = group->Has("format") ? *group : json;
    const auto* const format =
        std::ranges::find(kCompressedFormats, where.Text("format"), &CompressedFormat::name);
    if (format == kCompressedFormats.end()) {
      RefuseFormat(where, "format", kCompressedFormats);
      return {};
    }
    const HfQuantization read = ReadGroup(*group, *format);
    if (all.value_or(read) != read) {
      groups->Fail(name, "differs from the other groups; all weights that are quantized must be " +
                             DescribeScheme(all->scheme));
    }
    all = read;
  }
  return all.value_or(HfQuantization{});
}

// vLLM's own format and DeepSeek's. A dynamic scale of a whole batch becomes one per row, which is
// finer.
HfQuantization ReadFp8(const JsonFields& json) {
  if (json.Text("fmt", "e4m3") != "e4m3") Refuse(json, "fmt", "; it must be e4m3");
  const std::string activations = json.Text("activation_scheme");
  if (activations != "static" && activations != "dynamic") {
    Refuse(json, "activation_scheme", "; it must be static or dynamic");
  }
  const Inputs inputs = activations == "static" ? Inputs::kStatic : Inputs::kDynamic;
  const bool blocks = json.Has("weight_block_size");
  return {blocks ? BlockScheme(json, "weight_block_size", inputs) : Fp8Scheme(inputs),
          Packing::kBytes};
}

// activation_scale_ub bounds dynamic scales; without it inputs are nearer to what they were.
HfQuantization ReadFbgemm(const JsonFields& /*json*/) {
  return {Fp8Scheme(Inputs::kDynamic), Packing::kBytes};
}

// Groups are always of 32 columns.
constexpr QuantScheme kMxFp4Groups = {
    .element = Element::kFp4E2M1, .block_rows = 1, .block_columns = 32};

HfQuantization ReadMxfp4(const JsonFields& /*json*/) {
  return {kMxFp4Groups, Packing::kMxFp4Blocks};
}

struct ModeloptAlgo {
  std::string_view name;
  QuantScheme scheme;
  Packing packing;
};
constexpr QuantScheme kFp8Blocks = {
    .element = Element::kFp8E4M3, .block_rows = 128, .block_columns = 128};
constexpr QuantScheme kFp4Groups = {
    .element = Element::kFp4E2M1, .block_rows = 1, .block_columns = 16};
constexpr std::array kModeloptAlgos = {
    ModeloptAlgo{"FP8", Fp8Scheme(Inputs::kStatic), Packing::kBytes},
    ModeloptAlgo{"FP8_PER_CHANNEL_PER_TOKEN", Fp8Scheme(Inputs::kDynamic), Packing::kBytes},
    ModeloptAlgo{"FP8_PB_WO", kFp8Blocks, Packing::kBytes},
    ModeloptAlgo{"W8A16", {.element = Element::kInt8, .block_rows = 1}, Packing::kBytes},
    ModeloptAlgo{"W4A16_AWQ",
                 {.element = Element::kInt4, .block_rows = 1, .block_columns = 128},
                 Packing::kRowPairs},
    ModeloptAlgo{"W4A8_AWQ",
                 {.element = Element::kInt4,
                  .block_rows = 1,
                  .block_columns = 128,
                  .inputs = Inputs::kStatic},
                 Packing::kRowPairs},
    ModeloptAlgo{"MXFP4", kMxFp4Groups, Packing::kMxFp4},
    ModeloptAlgo{"NVFP4", kFp4Groups, Packing::kNvFp4},
    ModeloptAlgo{"NVFP4_AWQ", kFp4Groups, Packing::kNvFp4},
    ModeloptAlgo{"W4A16_NVFP4", kFp4Groups, Packing::kNvFp4},
};

// What scales of keys and values are for; none: for a cache that is not kept, which is no fault.
std::optional<DType> ReadModeloptCache(const JsonFields& json) {
  struct CacheAlgo {
    std::string_view name;
    std::optional<DType> scales;
  };
  constexpr std::array kAlgos = {CacheAlgo{"FP8", DType::kF8E4M3}, CacheAlgo{"INT8", DType::kI8},
                                 CacheAlgo{"NVFP4", std::nullopt}};
  const std::string name = json.Text("kv_cache_quant_algo", "FP8");
  const auto* const algo = std::ranges::find(kAlgos, name, &CacheAlgo::name);
  if (algo != kAlgos.end()) return algo->scales;
  RefuseUnlisted(json, "kv_cache_quant_algo", kAlgos);
  return std::nullopt;
}

// The tool itself writes "fp8_pb_wo" in small letters.
HfQuantization ReadModeloptAlgo(const JsonFields& json) {
  std::string name = json.Text("quant_algo");
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto* const algo = std::ranges::find(kModeloptAlgos, name, &ModeloptAlgo::name);
  if (algo == kModeloptAlgos.end()) {
    RefuseUnlisted(json, "quant_algo", kModeloptAlgos);
    return {};
  }
  HfQuantization read{algo->scheme, algo->packing};
  read.cache_scales = ReadModeloptCache(json);
  const bool groups = read.scheme.block_rows == 1 && read.scheme.block_columns > 0;
  if (groups && json.Int("group_size", 0) != 0) {
    read.scheme.block_columns = ReadGroupSize(json, "group_size");
  }
  return read;
}

// Layers may have algorithms of their own, if it is the same one for all that are quantized.
HfQuantization ReadModelopt(const JsonFields& config) {
  const JsonFields json = config.Object("quantization").value_or(config);
  if (!json.Has("quant_algo") && json.Has("kv_cache_quant_algo")) {
    HfQuantization cache_alone;
    cache_alone.cache_scales = ReadModeloptCache(json);
    return cache_alone;
  }
  if (json.Text("quant_algo") != "MIXED_PRECISION") return ReadModeloptAlgo(json);
  const auto layers = json.Object("quantized_layers");
  if (!layers || layers->Keys().empty()) {
    json.Fail("quantized_layers", "is missing");
    return {};
  }
  std::optional<HfQuantization> all;
  for (const std::string& name : layers->Keys()) {
    const auto layer = layers->Object(name);
    if (!layer) continue;
    const HfQuantization read = ReadModeloptAlgo(*layer);
    if (all.value_or(read) != read) {
      layers->Fail(name, "differs from the other layers; all that are quantized must be " +
                             DescribeScheme(all->scheme));
    }
    all = read;
  }
  return all.value_or(HfQuantization{});
}

// What scales of keys and values are for. Those that no cache here is kept with are no fault: a
// cache in 16 bits needs none.
std::optional<DType> ReadCache(const JsonFields& scheme) {
  if (scheme.Int("num_bits", 8) != 8 || !scheme.Bool("symmetric", true)) return std::nullopt;
  const std::string type = scheme.Text("type", "float");
  if (type == "float") return DType::kF8E4M3;
  return type == "int" ? std::optional(DType::kI8) : std::nullopt;
}

struct Method {
  std::string_view name;
  HfQuantization (*read)(const JsonFields& json);
};
constexpr std::array kMethods = {
    Method{"awq", ReadAwq},
    Method{"compressed-tensors", ReadCompressedTensors},
    Method{"fbgemm_fp8", ReadFbgemm},
    Method{"fp8", ReadFp8},
    Method{"gptq", ReadGptq},
    Method{"modelopt", ReadModelopt},
    Method{"modelopt_fp4", ReadModelopt},
    Method{"mxfp4", ReadMxfp4},
};

// Methods that are not read, as folders name them, and others whose weights are in the order of a
// kernel: what to do instead.
constexpr std::array<std::string_view, 13> kOtherMethods = {
    "aqlm",     "auto-round", "bitnet", "bitsandbytes", "eetq",    "exl2", "exl3",
    "fp_quant", "hqq",        "quanto", "quip",         "torchao", "vptq"};
constexpr std::array<std::string_view, 3> kMarlinMethods = {"awq_marlin", "gptq_marlin", "marlin"};
constexpr std::string_view kTakeOriginal =
    "; take the model as it was before, and round it while it is loaded (--weights int8, int4 or "
    "fp8) or with `tandem quantize`";

void RefuseMethod(const JsonFields& json, std::string_view key, const std::string& method) {
  if (std::ranges::find(kMarlinMethods, method) != kMarlinMethods.end()) {
    Refuse(json, key, kTakeOtherOrder);
  } else if (std::ranges::find(kOtherMethods, method) != kOtherMethods.end()) {
    Refuse(json, key, kTakeOriginal);
  } else {
    RefuseUnlisted(json, key, kMethods);
  }
}

constexpr std::array kFiles = {
    QuantizationFile{"quantize_config.json", ReadGptq},
    QuantizationFile{"quant_config.json", ReadAwq},
    QuantizationFile{"hf_quant_config.json", ReadModelopt},
};

}  // namespace

HfQuantization ReadHfQuantization(const JsonFields& config) {
  const auto json = config.Object("quantization_config");
  if (!json) return {};
  // Of before the key quant_method existed.
  for (const char* key : {"load_in_8bit", "load_in_4bit"}) {
    if (json->Has("quant_method") || !json->Has(key)) continue;
    RefuseMethod(*json, key, "bitsandbytes");
    return {};
  }
  const std::string name = json->Text("quant_method");
  const auto* const method = std::ranges::find(kMethods, name, &Method::name);
  if (method == kMethods.end()) {
    RefuseMethod(*json, "quant_method", name);
    return {};
  }
  HfQuantization read = method->read(*json);
  if (const auto cache = json->Object("kv_cache_scheme")) read.cache_scales = ReadCache(*cache);
  return read;
}

void ReadQuantization(const JsonFields& config, ModelSpec& spec) {
  const HfQuantization read = ReadHfQuantization(config);
  spec.quantization = read.scheme;
  const auto json = config.Object("quantization_config");
  const bool scaled = json && json->Has("kv_cache_scheme") && !spec.has_latents();
  if (scaled) spec.cache_scales = read.cache_scales;
}

std::span<const QuantizationFile> QuantizationFiles() { return kFiles; }

}  // namespace tandem
