#include "apps/models/calibration.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "engine_folder/source.h"

namespace tandem::apps {
namespace {

template <auto kField>
BoundOption<CalibrationOptions> Sets(OptionSpec spec) {
  spec.group = "Calibration";
  return BindOption<CalibrationOptions, kField>(spec);
}

void SayEstimate(const CalibrationTexts& texts, const CalibrationEstimate& estimate,
                 Console& console) {
  console.Say(fmt::format("calibrating with {} samples of {}", texts.samples.size(), texts.origin));
  std::string line = fmt::format(
      "calibrating with {} tokens: about {:.0f} s, {} of memory, {} of files for hidden states",
      estimate.rows, estimate.seconds, FormatBytes(estimate.memory_bytes),
      FormatBytes(estimate.spill_bytes));
  if (estimate.layers_done > 0) {
    line += fmt::format("; goes on after layer {}", estimate.layers_done);
  }
  console.Say(line);
}

}  // namespace

const BoundOptions<CalibrationOptions>& CalibrationOptionRows() {
  static const BoundOptions<CalibrationOptions> rows({
      Sets<&CalibrationOptions::dataset>(
          {.name = "calib_dataset",
           .meaning = "A text file (a sample a line) or a .jsonl file (of objects with \"text\", "
                      "\"article\" or \"prompt\"). Any other name means the embedded dictionary, "
                      "which needs no network"}),
      Sets<&CalibrationOptions::size>({.name = "calib_size",
                                       .meaning = "Samples to calibrate with, at most",
                                       .min = 1,
                                       .max = 1e6}),
      Sets<&CalibrationOptions::longest>({.name = "calib_max_seq_length",
                                          .meaning = "Tokens of a sample, at most",
                                          .min = 1,
                                          .max = 1 << 20}),
      Sets<&CalibrationOptions::batch_size>(
          {.name = "calib_batch_size",
           .meaning = "Samples that are run together, at most; 0: as many as fit in 2,048 tokens",
           .min = 0,
           .max = 1e6,
           .alias = "batch_size"}),
      Sets<&CalibrationOptions::tokenizer_dir>(
          {.name = "tokenizer_dir",
           .meaning = "Folder of the tokenizer, whose files go along; default: the model's"}),
  });
  return rows;
}

void SayWritten(const std::filesystem::path& output_dir, const WriteReport& report,
                const nlohmann::ordered_json& more, Console& console) {
  const std::string format = DescribeFormat({report.spec.dtype, report.spec.quantization});
  const int64_t files = report.sharding.num_files();
  const std::string ranks = files == 1 ? "" : fmt::format(", {} ranks", files);
  console.Say(fmt::format("{}: {}{}, {}", output_dir.string(), format, ranks,
                          FormatBytes(report.bytes_written)));
  nlohmann::ordered_json result{{"output_dir", output_dir.string()},
                                {"quantization", format},
                                {"tp_size", report.sharding.tp_size},
                                {"pp_size", report.sharding.pp_size},
                                {"bytes", report.bytes_written}};
  result.update(more);
  console.Result(result);
}

Result<QuantizedReport> CalibrateAndQuantize(QuantizeOptions options,
                                             const CalibrationOptions& calibration,
                                             const BackendOptions& backend,
                                             const Interrupt& interrupt, Console& console) {
  options.num_threads = backend.cpu.num_threads;
  options.tokenizer_dir = calibration.tokenizer_dir;
  options.batch_samples = calibration.batch_size;
  TANDEM_ASSIGN_OR_RETURN(const auto made, MakeBackend(backend));
  CalibrationTexts texts;
  if (options.recipe.calibrates()) {
    TANDEM_ASSIGN_OR_RETURN(texts,
                            ReadCalibrationTexts(options.model_dir, calibration, options.config));
  }
  const QuantizeEvents events{
      .estimate =
          [&](const CalibrationEstimate& estimate) { SayEstimate(texts, estimate, console); },
      .calibrating = Told("calibrating", interrupt, console),
      .writing = Told("writing", interrupt, console)};
  TANDEM_ASSIGN_OR_RETURN(WriteReport report, Quantize(options, texts.samples, *made, events));
  return QuantizedReport{std::move(report), texts.samples.size()};
}

Status RunQuantize(QuantizeOptions options, const OptionValues& values, Console& console) {
  const std::filesystem::path output_dir = options.output_dir;
  const Interrupt interrupt;
  TANDEM_ASSIGN_OR_RETURN(
      const QuantizedReport report,
      CalibrateAndQuantize(std::move(options), CalibrationOptionRows().Read(values),
                           BackendOptionRows().Read(values), interrupt, console));
  SayWritten(output_dir, report.written, {{"calibration_samples", report.samples}}, console);
  return {};
}

}  // namespace tandem::apps
