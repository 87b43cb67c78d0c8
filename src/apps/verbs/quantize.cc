// `tandem quantize`: a Hugging Face folder becomes a quantized checkpoint, with the flags of
// TensorRT-LLM's quantize.py.
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

// As on the command line.
struct Request {
  std::filesystem::path model_dir;
  std::filesystem::path output_dir;
  std::string dtype;
  std::string qformat;
  std::string kv_cache_dtype;
  int64_t awq_block_size = 128;
  double smoothquant = 0.5;
  int64_t tp_size = 1;
  int64_t pp_size = 1;
  FolderKind folder = FolderKind::kCheckpoint;
};

template <auto kField>
BoundOption<Request> Sets(OptionSpec spec) {
  spec.group = "Quantization";
  return BindOption<Request, kField>(spec);
}

const BoundOptions<Request>& Rows() {
  static const BoundOptions<Request> rows({
      Sets<&Request::model_dir>(
          {.name = "model_dir", .meaning = kFolderToRead, .position = Position::kRequired}),
      Sets<&Request::output_dir>({.name = "output_dir",
                                  .default_value = "exported_model",
                                  .meaning = "Folder to write; it appears when it is complete",
                                  .alias = "export_path"}),
      Sets<&Request::dtype>(
          {.name = "dtype",
           .default_value = "auto",
           .meaning = "Element type of what is not quantized; auto keeps the model's, but float32 "
                      "becomes float16",
           .choices = "auto|float16|bfloat16|float32"}),
      Sets<&Request::qformat>(
          {.name = "qformat",
           .default_value = "full_prec",
           .meaning = "How the layers' weights are stored: fp8 with static input scales; int8_sq: "
                      "int8 by SmoothQuant; int4_awq: int4 in groups by AWQ; w4a8_awq: the same "
                      "with fp8 inputs; int8_wo, int4_wo: rounded, without calibration; full_prec: "
                      "as they are"}),
      Sets<&Request::kv_cache_dtype>(
          {.name = "kv_cache_dtype",
           .default_value = "none",
           .meaning = "Calibrate scales of keys and values for a cache of this type: none, fp8 or "
                      "int8"}),
      Sets<&Request::awq_block_size>({.name = "awq_block_size",
                                      .default_value = "128",
                                      .meaning = "Columns of a group with one scale",
                                      .choices = "64|128"}),
      Sets<&Request::smoothquant>(
          {.name = "smoothquant",
           .default_value = "0.5",
           .meaning = "Of int8_sq: how much of the inputs' range moves into the weights",
           .min = 0,
           .max = 1,
           .alias = "sq_alpha"}),
      Sets<&Request::tp_size>(kTpSize),
      Sets<&Request::pp_size>(kPpSize),
      BindChoice<Request, &Request::folder>(
          {.name = "export_format",
           .default_value = "tensorrt_llm",
           .meaning = "A checkpoint in TensorRT-LLM's layout, or a Hugging Face folder in the "
                      "format of compressed-tensors, which vLLM reads too",
           .group = "Quantization"},
          {{"tensorrt_llm", FolderKind::kCheckpoint}, {"hf", FolderKind::kHuggingFace}}),
  });
  return rows;
}

constexpr OptionSpec kQuantizeHead = {
    .name = "quantize_lm_head",
    .type = OptionType::kFlag,
    .default_value = "false",
    .meaning =
        "Refused: the head is written in --dtype; --head_weights of `serve` and `run` rounds "
        "it",
    .group = "Quantization"};
constexpr OptionSpec kAutoQuantize = {.name = "auto_quantize_bits",
                                      .default_value = "none",
                                      .meaning = "Refused unless none: all layers have one format",
                                      .group = "Quantization"};
constexpr OptionSpec kNotMade[] = {CpSize("Quantization"), kQuantizeHead, kAutoQuantize};

// What quantize.py makes, and this program does not.
Status CheckMade(const OptionValues& values) {
  if (values.Flag(kQuantizeHead)) {
    return Unimplemented(
        "--quantize_lm_head: the head is written in --dtype. Leave this out; --head_weights int8 "
        "of `serve` and `run` rounds the head while it is loaded");
  }
  if (values.Text(kAutoQuantize) != "none") {
    return Unimplemented(
        "--auto_quantize_bits: all layers have one format. Leave this out and name it with "
        "--qformat: int4_awq is the smallest");
  }
  return {};
}

Status Run(const OptionValues& values, Console& console) {
  NameLegacyOptions(values, LegacyQuantizeRows());
  Request request = Rows().Read(values);
  TANDEM_RETURN_IF_ERROR(CheckMade(values));
  TANDEM_ASSIGN_OR_RETURN(request.model_dir, LocalModel(request.model_dir, values));
  TANDEM_RETURN_IF_ERROR(CheckHuggingFaceFolder(request.model_dir));
  QuantizeOptions options{.model_dir = request.model_dir,
                          .output_dir = request.output_dir,
                          .config = ConfigOptionRows().Read(values),
                          .dtype = request.dtype,
                          .recipe = {},
                          .sharding = {.tp_size = request.tp_size, .pp_size = request.pp_size},
                          .folder = request.folder};
  const bool is_split = request.tp_size > 1 || request.pp_size > 1;
  if (request.folder == FolderKind::kHuggingFace && is_split) {
    LogWarning("--tp_size and --pp_size have no effect with --export_format hf: it is not split");
    options.sharding = {};
  }
  TANDEM_ASSIGN_OR_RETURN(
      options.recipe, RecipeOf(request.qformat, request.awq_block_size, request.kv_cache_dtype));
  options.recipe.smooth_alpha = request.smoothquant;
  if (!values.IsSet(Rows().RowOf<&Request::qformat>())) {
    LogWarning(
        "--qformat is not given: full_prec leaves the weights as they are. To quantize them, name "
        "one of {}",
        QuantFormatNames());
  }
  return RunQuantize(std::move(options), values, console);
}

}  // namespace

Command QuantizeCommand() {
  return {.name = "quantize",
          .summary = "Write a Hugging Face folder as a quantized checkpoint or folder",
          .examples =
              "  tandem quantize --model_dir MODEL --qformat int4_awq --output_dir CKPT\n"
              "  tandem quantize --model_dir MODEL --qformat fp8 --kv_cache_dtype fp8 \\\n"
              "    --tp_size 2 --output_dir CKPT\n",
          .options = Join({Rows().specs(), kNotMade, SourceOptionRows().specs(),
                           ConfigOptionRows().specs(), CalibrationOptionRows().specs(),
                           LegacyQuantizeRows(), BackendOptionRows().specs()}),
          .run = Run};
}

}  // namespace tandem::apps
