// `tandem convert`: a Hugging Face folder becomes a checkpoint in TensorRT-LLM's layout, with the
// flags of its convert_checkpoint.py.
#include "checkpoint/convert.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/cli/interrupt.h"
#include "apps/cli/legacy_options.h"
#include "apps/cli/verbs.h"
#include "apps/models/calibration.h"
#include "apps/models/config_rows.h"
#include "apps/models/devices.h"
#include "apps/models/local_model.h"
#include "base/bound_options.h"
#include "base/log.h"
#include "engine_folder/source.h"

namespace tandem::apps {
namespace {

template <auto kField>
BoundOption<ConvertOptions> Sets(OptionSpec spec) {
  spec.group = "Conversion";
  return BindOption<ConvertOptions, kField>(spec);
}

const BoundOptions<ConvertOptions>& Rows() {
  static const BoundOptions<ConvertOptions> rows({
      Sets<&ConvertOptions::model_dir>(
          {.name = "model_dir", .meaning = kFolderToRead, .position = Position::kRequired}),
      Sets<&ConvertOptions::output_dir>(
          {.name = "output_dir",
           .default_value = "tllm_checkpoint",
           .meaning = "Folder to write; it appears when it is complete"}),
      Sets<&ConvertOptions::dtype>(
          {.name = "dtype",
           .meaning = "Element type of the weights; auto keeps the model's, but float32 becomes "
                      "float16",
           .choices = "auto|float16|bfloat16|float32"}),
      Sets<&ConvertOptions::tp_size>(kTpSize),
      Sets<&ConvertOptions::pp_size>(kPpSize),
      Sets<&ConvertOptions::parallel_embedding>(
          {.name = "use_parallel_embedding", .meaning = "Shard the embedding too"}),
      Sets<&ConvertOptions::embedding_sharding_dim>(
          {.name = "embedding_sharding_dim",
           .meaning = "Shard the embedding by vocabulary (0) or by hidden size (1)",
           .choices = "0|1"}),
  });
  return rows;
}

// How weights are quantized, as convert_checkpoint.py is asked for it.
struct Rounding {
  bool weight_only = false;
  std::string weight_only_precision = "int8";
  bool per_group = false;
  int64_t group_size = 128;
  std::filesystem::path quant_ckpt_path;
  double smoothquant = -1.0;  // below 0: not at all
  bool per_channel = false;
  bool per_token = false;
  bool fp8 = false;
  bool fp8_rowwise = false;
  bool fp8_kv_cache = false;
  bool int8_kv_cache = false;
};

template <auto kField>
BoundOption<Rounding> Rounds(OptionSpec spec) {
  spec.group = "Quantization";
  return BindOption<Rounding, kField>(spec);
}

const BoundOptions<Rounding>& RoundingRows() {
  static const BoundOptions<Rounding> rows({
      Rounds<&Rounding::weight_only>(
          {.name = "use_weight_only", .meaning = "Round the layers' weights to integers"}),
      Rounds<&Rounding::weight_only_precision>(
          {.name = "weight_only_precision",
           .meaning = "To which; of the last three, weights that another tool has quantized are "
                      "read (`tandem quantize` makes int4_awq)",
           .choices = "int8|int4|int8_gptq|int4_gptq|int4_awq"}),
      Rounds<&Rounding::per_group>(
          {.name = "per_group",
           .meaning = "A scale for each group of columns instead of one for each output"}),
      Rounds<&Rounding::group_size>(
          {.name = "group_size", .meaning = "Columns of a group", .min = 16, .max = 1 << 16}),
      Rounds<&Rounding::quant_ckpt_path>(
          {.name = "quant_ckpt_path",
           .meaning = "Folder of the weights that another tool has quantized; default: model_dir"}),
      Rounds<&Rounding::smoothquant>(
          {.name = "smoothquant",
           .meaning = "SmoothQuant in int8: how much of the inputs' range moves into the weights, "
                      "from 0 to 1; below 0: none",
           .max = 1,
           .alias = "sq|-sq"}),
      Rounds<&Rounding::per_channel>(
          {.name = "per_channel",
           .meaning = "Of SmoothQuant: a scale for each output. Always so; accepted"}),
      Rounds<&Rounding::per_token>(
          {.name = "per_token",
           .meaning = "Of SmoothQuant: inputs are scaled by their own maximum, not by a calibrated "
                      "one"}),
      Rounds<&Rounding::fp8>(
          {.name = "use_fp8", .meaning = "fp8 weights with calibrated input scales"}),
      Rounds<&Rounding::fp8_rowwise>(
          {.name = "use_fp8_rowwise",
           .meaning = "fp8 weights; inputs are scaled by their own maximum"}),
      Rounds<&Rounding::fp8_kv_cache>(
          {.name = "fp8_kv_cache",
           .meaning = "Calibrate scales of keys and values for a cache in fp8"}),
      Rounds<&Rounding::int8_kv_cache>(
          {.name = "int8_kv_cache",
           .meaning = "Calibrate scales of keys and values for a cache in int8"}),
  });
  return rows;
}

// "int4" of "int4_gptq"; empty where the weights are rounded here.
std::string ReadPrecision(const Rounding& asked) {
  const size_t tool = asked.weight_only_precision.find('_');
  return asked.weight_only && tool != std::string::npos
             ? asked.weight_only_precision.substr(0, tool)
             : std::string();
}

// The folder holds what --weight_only_precision says of it.
Status CheckQuantized(const std::filesystem::path& folder, const ConfigOptions& config,
                      const Rounding& asked) {
  TANDEM_RETURN_IF_ERROR(CheckHuggingFaceFolder(folder));
  TANDEM_ASSIGN_OR_RETURN(const auto reader, HfReader::Open(folder, std::nullopt, config));
  const QuantScheme& scheme = reader->spec().quantization;
  const std::string precision = ReadPrecision(asked);
  const auto element =
      precision == "int4" ? QuantScheme::Element::kInt4 : QuantScheme::Element::kInt8;
  if (scheme.element != element) {
    return InvalidArgument("--weight_only_precision: says " + asked.weight_only_precision +
                           ", but " + folder.string() + " holds weights in " +
                           DescribeFormat({reader->spec().dtype, scheme}) +
                           "; name their folder with --quant_ckpt_path");
  }
  if (asked.per_group && scheme.block_columns != asked.group_size) {
    return InvalidArgument("--group_size: is " + std::to_string(asked.group_size) + ", but " +
                           folder.string() + " holds " + DescribeScheme(scheme));
  }
  return {};
}

// What is given, and acts only beside another option.
void NameIdle(const Rounding& asked) {
  const Rounding none;
  const bool smooth = asked.smoothquant >= 0.0;
  const bool reads = !ReadPrecision(asked).empty();
  const auto name = [](bool idle, std::string_view option, std::string_view needed) {
    if (idle) LogWarning("--{} has no effect without --{}", option, needed);
  };
  name(asked.weight_only_precision != none.weight_only_precision && !asked.weight_only,
       "weight_only_precision", "use_weight_only");
  name(asked.per_group && !asked.weight_only, "per_group", "use_weight_only");
  name(asked.group_size != none.group_size && !(asked.weight_only && asked.per_group), "group_size",
       "use_weight_only and --per_group");
  name(asked.per_token && !smooth, "per_token", "smoothquant");
  name(asked.per_channel && !smooth, "per_channel", "smoothquant");
  name(!asked.quant_ckpt_path.empty() && !reads, "quant_ckpt_path",
       "use_weight_only and a --weight_only_precision that names a tool");
}

Result<QuantizeRecipe> RecipeFor(const Rounding& asked) {
  const bool smooth = asked.smoothquant >= 0.0;
  if (asked.weight_only + smooth + asked.fp8 + asked.fp8_rowwise > 1) {
    return InvalidArgument(
        "--use_weight_only, --smoothquant, --use_fp8 and --use_fp8_rowwise exclude each other");
  }
  std::string qformat = "full_prec";
  const bool is_read = !ReadPrecision(asked).empty();
  if (asked.weight_only && !is_read) qformat = asked.weight_only_precision + "_wo";
  if (smooth) qformat = "int8_sq";
  if (asked.fp8 || asked.fp8_rowwise) qformat = "fp8";
  if (asked.int8_kv_cache && asked.fp8_kv_cache) {
    return InvalidArgument("--int8_kv_cache and --fp8_kv_cache exclude each other");
  }
  const char* cache = asked.int8_kv_cache ? "int8" : asked.fp8_kv_cache ? "fp8" : "none";
  TANDEM_ASSIGN_OR_RETURN(QuantizeRecipe recipe, RecipeOf(qformat, 128, cache));
  if (asked.weight_only && asked.per_group && !is_read) {
    recipe.scheme.block_columns = asked.group_size;
  }
  if (smooth) recipe.smooth_alpha = asked.smoothquant;
  if (asked.fp8_rowwise || (smooth && asked.per_token)) {
    recipe.scheme.inputs = QuantScheme::Inputs::kDynamic;
  }
  return recipe;
}

constexpr OptionSpec kRefused[] = {CpSize("Conversion")};

Status Run(const OptionValues& values, Console& console) {
  NameLegacyOptions(values, LegacyConvertRows());
  ConvertOptions convert = Rows().Read(values);
  convert.config = ConfigOptionRows().Read(values);
  TANDEM_ASSIGN_OR_RETURN(convert.model_dir, LocalModel(convert.model_dir, values));
  TANDEM_RETURN_IF_ERROR(CheckHuggingFaceFolder(convert.model_dir));
  const Rounding asked = RoundingRows().Read(values);
  NameIdle(asked);
  TANDEM_ASSIGN_OR_RETURN(const QuantizeRecipe recipe, RecipeFor(asked));
  if (!ReadPrecision(asked).empty()) {
    convert.quantized_dir = asked.quant_ckpt_path;
    const auto& folder = convert.quantized_dir.empty() ? convert.model_dir : convert.quantized_dir;
    TANDEM_RETURN_IF_ERROR(CheckQuantized(folder, convert.config, asked));
    if (recipe.calibrates()) {
      return InvalidArgument(fmt::format(
          "--{}_kv_cache: scales of keys and values are calibrated with plain weights, and those "
          "of "
          "{} are quantized; leave it out, or run `tandem quantize --kv_cache_dtype` on the plain "
          "model",
          asked.int8_kv_cache ? "int8" : "fp8", folder.string()));
    }
  }
  if (!recipe.scheme.is_plain() || recipe.calibrates()) {
    return RunQuantize({.model_dir = convert.model_dir,
                        .output_dir = convert.output_dir,
                        .config = convert.config,
                        .dtype = convert.dtype,
                        .recipe = recipe,
                        .sharding = {convert.tp_size, convert.parallel_embedding,
                                     convert.embedding_sharding_dim, convert.pp_size}},
                       values, console);
  }
  const Interrupt interrupt;
  TANDEM_ASSIGN_OR_RETURN(const WriteReport report,
                          Convert(convert, Told("converting", interrupt, console)));
  SayWritten(convert.output_dir, report, {{"dtype", DTypeName(report.spec.dtype)}}, console);
  return {};
}

}  // namespace

Command ConvertCommand() {
  return {
      .name = "convert",
      .summary = "Write a Hugging Face folder as a checkpoint in TensorRT-LLM's layout",
      .examples =
          "  tandem convert --model_dir MODEL --output_dir CKPT --tp_size 2\n"
          "  tandem convert --model_dir MODEL --output_dir CKPT --smoothquant 0.5 \\\n"
          "    --per_token --per_channel\n",
      .options = Join({Rows().specs(), kRefused, RoundingRows().specs(), SourceOptionRows().specs(),
                       ConfigOptionRows().specs(), CalibrationOptionRows().specs(),
                       LegacyConvertRows(), BackendOptionRows().specs()}),
      .run = Run};
}

}  // namespace tandem::apps
