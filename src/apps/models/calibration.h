// What `tandem quantize` and `tandem convert` have in common: the options of sharding, the options
// and the texts of calibration, and the run with its progress and its result on the console. Main
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/command.h"
#include "apps/cli/interrupt.h"
#include "apps/models/devices.h"
#include "base/bound_options.h"
#include "quantize/quantize.h"

namespace tandem::apps {

// The group is the verb's.
inline constexpr OptionSpec kTpSize = {
    .name = "tp_size", .meaning = "Tensor-parallel ranks to shard for", .choices = "1|2|4|8"};
inline constexpr OptionSpec kPpSize = {
    .name = "pp_size",
    .meaning = "Pipeline stages to split the layers over, in files: devices read all of them",
    .min = 1};
constexpr OptionSpec CpSize(std::string_view group) {
  return {.name = "cp_size",
          .type = OptionType::kInt,
          .default_value = "1",
          .meaning = "Only 1: sequences are not split over ranks",
          .group = group,
          .choices = "1"};
}

struct CalibrationOptions {
  std::filesystem::path tokenizer_dir;  // empty: the model's folder
  std::string dataset;
  int64_t size = 512;
  int64_t longest = 512;
  int64_t batch_size = 0;  // samples that are run together; 0: as many as fit
};
const BoundOptions<CalibrationOptions>& CalibrationOptionRows();

struct CalibrationTexts {
  std::string origin;  // for people: the file, or what was taken in its place
  std::vector<std::vector<int32_t>> samples;
};

// At most `size` samples of at most `longest` tokens; a longer text is cut so that the tokens stay
// that the layout of the model's prompts needs. The dataset: a text file (a sample a line) or
// a .jsonl file (of objects with the text under "text", "article" or "prompt"); the name of
// anything that is not a file on this machine means the embedded dictionary's questions and
// answers, which need no network. UNIMPLEMENTED in a build without tokenizers.
Result<CalibrationTexts> ReadCalibrationTexts(const std::filesystem::path& model_dir,
                                              const CalibrationOptions& options,
                                              const ConfigOptions& config = {});

// Says what was written. The result is the same in JSON, with `more` keys of the verb.
void SayWritten(const std::filesystem::path& output_dir, const WriteReport& report,
                const nlohmann::ordered_json& more, Console& console);

// Reads the texts if the recipe calibrates and runs Quantize, whose texts and threads these options
// give.
struct QuantizedReport {
  WriteReport written;
  size_t samples = 0;
};
Result<QuantizedReport> CalibrateAndQuantize(QuantizeOptions options,
                                             const CalibrationOptions& calibration,
                                             const BackendOptions& backend,
                                             const Interrupt& interrupt, Console& console);

// The same with the options that `values` name, and reports.
Status RunQuantize(QuantizeOptions options, const OptionValues& values, Console& console);

}  // namespace tandem::apps
