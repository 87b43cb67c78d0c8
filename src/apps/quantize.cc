// `tandem quantize`: a Hugging Face folder becomes a quantized checkpoint, with the flags of
// TensorRT-LLM's quantize.py.
#include "checkpoint/quantize/quantize.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/calibration_texts.h"
#include "apps/devices.h"
#include "apps/legacy_options.h"
#include "apps/text_verbs.h"
#include "base/bound_options.h"
#include "base/log.h"
#include "checkpoint/hf_reader.h"
#include "engine_folder/source.h"

namespace tandem::apps {
namespace {

// As on the command line.
struct Request {
  std::filesystem::path model_dir;
  std::filesystem::path output_dir;
  std::filesystem::path tokenizer_dir;
  std::string dtype;
  std::string qformat;
  std::string kv_cache_dtype;
  std::string calib_dataset;
  int64_t calib_size = 512;
  int64_t calib_max_seq_length = 512;
  int64_t awq_block_size = 128;
  double smoothquant = 0.5;
  int64_t tp_size = 1;
  bool export_hf = false;
};

template <auto kField>
BoundOption<Request> Sets(OptionSpec spec) {
  spec.group = "Quantization";
  return BindOption<Request, kField>(spec);
}

const BoundOptions<Request>& Rows() {
  static const BoundOptions<Request> rows({
      Sets<&Request::model_dir>({.name = "model_dir",
                                 .meaning = "Hugging Face folder to read",
                                 .position = Position::kRequired}),
      Sets<&Request::output_dir>({.name = "output_dir",
                                  .default_value = "exported_model",
                                  .meaning = "Folder to write; it appears when it is complete",
                                  .alias = "export_path"}),
      Sets<&Request::tokenizer_dir>(
          {.name = "tokenizer_dir",
           .meaning = "Folder of the tokenizer for calibration; default: the model's"}),
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
           .meaning = "Calibrate scales of keys and values for a cache of this type: none or fp8"}),
      Sets<&Request::calib_dataset>(
          {.name = "calib_dataset",
           .meaning = "A text file (a sample a line) or a .jsonl file (of objects with \"text\", "
                      "\"article\" or \"prompt\"). Any other name means the embedded dictionary, "
                      "which needs no network"}),
      Sets<&Request::calib_size>({.name = "calib_size",
                                  .default_value = "512",
                                  .meaning = "Samples to calibrate with, at most",
                                  .min = 1,
                                  .max = 1e6}),
      Sets<&Request::calib_max_seq_length>({.name = "calib_max_seq_length",
                                            .default_value = "512",
                                            .meaning = "Tokens of a sample, at most",
                                            .min = 1,
                                            .max = 1 << 20}),
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
      Sets<&Request::tp_size>({.name = "tp_size",
                               .default_value = "1",
                               .meaning = "Tensor-parallel ranks to shard for",
                               .choices = "1|2|4|8"}),
      BindChoice<Request, &Request::export_hf>(
          {.name = "export_format",
           .default_value = "tensorrt_llm",
           .meaning = "A checkpoint in TensorRT-LLM's layout, or a Hugging Face folder in the "
                      "format of compressed-tensors, which vLLM reads too",
           .group = "Quantization"},
          {{"tensorrt_llm", false}, {"hf", true}}),
  });
  return rows;
}

constexpr OptionSpec kRefused[] = {
    {.name = "pp_size",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Only 1: layers are not split over ranks",
     .group = "Quantization",
     .choices = "1"},
    {.name = "cp_size",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Only 1: sequences are not split over ranks",
     .group = "Quantization",
     .choices = "1"},
    {.name = "quantize_lm_head",
     .type = OptionType::kFlag,
     .meaning = "Only false: the head stays as it is",
     .group = "Quantization",
     .choices = "false"},
    {.name = "auto_quantize_bits",
     .meaning = "Not supported: all layers have one format",
     .group = "Quantization",
     .choices = "none"},
};

Result<CalibrationTexts> ReadSamples(const Request& request) {
  const auto& folder = request.tokenizer_dir.empty() ? request.model_dir : request.tokenizer_dir;
  TANDEM_ASSIGN_OR_RETURN(const auto reader, HfReader::Open(request.model_dir));
  auto codec = serve::LoadTextCodec(folder, reader->spec().vocab_size);
  if (!codec.ok())
    return codec.status().Annotate("the tokenizer, with which calibration texts are read");
  TANDEM_ASSIGN_OR_RETURN(CalibrationTexts texts,
                          ReadCalibrationTexts(request.calib_dataset, request.calib_size,
                                               request.calib_max_seq_length, **codec));
  LogInfo("calibrating with {} samples of {}", texts.samples.size(), texts.origin);
  return texts;
}

void SayEstimate(const CalibrationEstimate& estimate, Console& console) {
  std::string line = fmt::format(
      "calibrating with {} tokens: about {:.0f} s, {} of memory, {} of files for hidden states",
      estimate.rows, estimate.seconds, FormatBytes(estimate.memory_bytes),
      FormatBytes(estimate.spill_bytes));
  if (estimate.layers_done > 0) {
    line += fmt::format("; goes on after layer {}", estimate.layers_done);
  }
  console.Say(line);
}

Status Run(const OptionValues& values, Console& console) {
  NameLegacyOptions(values, LegacyQuantizeRows());
  const Request request = Rows().Read(values);
  TANDEM_RETURN_IF_ERROR(CheckModelFolder(request.model_dir));
  QuantizeOptions options{.model_dir = request.model_dir,
                          .output_dir = request.output_dir,
                          .dtype = request.dtype,
                          .recipe = {},
                          .tp_size = request.tp_size,
                          .export_hf = request.export_hf};
  TANDEM_ASSIGN_OR_RETURN(
      options.recipe, RecipeOf(request.qformat, request.awq_block_size, request.kv_cache_dtype));
  options.recipe.smooth_alpha = request.smoothquant;
  const BackendOptions backend_options = BackendOptionRows().Read(values);
  options.num_threads = backend_options.cpu.num_threads;
  TANDEM_ASSIGN_OR_RETURN(const auto backend, MakeBackend(backend_options));
  CalibrationTexts texts;
  if (options.recipe.calibrates()) {
    TANDEM_ASSIGN_OR_RETURN(texts, ReadSamples(request));
  }
  const QuantizeEvents events{
      .estimate = [&](const CalibrationEstimate& estimate) { SayEstimate(estimate, console); },
      .calibrating = [&](double done) { console.Progress("calibrating", done); },
      .writing = [&](double done) { console.Progress("writing", done); }};
  TANDEM_ASSIGN_OR_RETURN(const QuantizeReport report,
                          Quantize(options, texts.samples, *backend, events));
  const std::string format = DescribeScheme(report.spec.quantization);
  console.Say(fmt::format("{}: {}, {} rank{}, {}", request.output_dir.string(), format,
                          report.tp_size, report.tp_size == 1 ? "" : "s",
                          FormatBytes(report.bytes_written)));
  console.Result(nlohmann::ordered_json{{"output_dir", request.output_dir.string()},
                                        {"quantization", format},
                                        {"calibration_samples", texts.samples.size()},
                                        {"tp_size", report.tp_size},
                                        {"bytes", report.bytes_written}});
  return {};
}

}  // namespace

Command QuantizeCommand() {
  return {.name = "quantize",
          .summary = "Write a Hugging Face folder as a quantized checkpoint or folder",
          .examples =
              "  tandem quantize --model_dir MODEL --qformat int4_awq --output_dir CKPT\n"
              "  tandem quantize --model_dir MODEL --qformat fp8 --kv_cache_dtype fp8 \\\n"
              "    --tp_size 2 --output_dir CKPT\n",
          .options =
              Join({Rows().specs(), kRefused, LegacyQuantizeRows(), BackendOptionRows().specs()}),
          .run = Run};
}

}  // namespace tandem::apps
