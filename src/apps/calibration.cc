#include "apps/calibration.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/devices.h"
#include "apps/interrupt.h"
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

Status RunQuantize(QuantizeOptions options, const OptionValues& values, Console& console) {
  const BackendOptions backend_options = BackendOptionRows().Read(values);
  options.num_threads = backend_options.cpu.num_threads;
  TANDEM_ASSIGN_OR_RETURN(const auto backend, MakeBackend(backend_options));
  const CalibrationOptions calibration = CalibrationOptionRows().Read(values);
  options.tokenizer_dir = calibration.tokenizer_dir;
  CalibrationTexts texts;
  if (options.recipe.calibrates()) {
    TANDEM_ASSIGN_OR_RETURN(texts,
                            ReadCalibrationTexts(options.model_dir, calibration, options.config));
  }
  const Interrupt interrupt;
  const QuantizeEvents events{
      .estimate =
          [&](const CalibrationEstimate& estimate) { SayEstimate(texts, estimate, console); },
      .calibrating = Told("calibrating", interrupt, console),
      .writing = Told("writing", interrupt, console)};
  TANDEM_ASSIGN_OR_RETURN(const WriteReport report,
                          Quantize(options, texts.samples, *backend, events));
  SayWritten(options.output_dir, report, {{"calibration_samples", texts.samples.size()}}, console);
  return {};
}

}  // namespace tandem::apps
