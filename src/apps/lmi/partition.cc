// `tandem partition`: a model with its serving.properties becomes the artifact that LMI's
// ahead-of-time compilation makes, with the flags of trt_llm_partition.py.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/cli/interrupt.h"
#include "apps/cli/text_verbs.h"
#include "apps/lmi/config.h"
#include "apps/lmi/neo.h"
#include "apps/lmi/partition_job.h"
#include "apps/models/artifact.h"
#include "apps/models/calibration.h"
#include "apps/models/quantized_model.h"
#include "base/file.h"
#include "checkpoint/convert.h"
#include "engine_folder/build.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

// The checkpoint of which the engine is made.
Status WriteCheckpoint(const PartitionJob& job, const Interrupt& interrupt, Console& console) {
  if (!job.quantization) {
    return Convert({.model_dir = job.model,
                    .output_dir = job.work,
                    .config = job.config,
                    .dtype = job.dtype,
                    .tp_size = job.sharding.tp_size,
                    .pp_size = job.sharding.pp_size},
                   Told("converting", interrupt, console))
        .status();
  }
  QuantizeOptions quantize{.model_dir = job.model,
                           .output_dir = job.work,
                           .config = job.config,
                           .dtype = job.dtype,
                           .recipe = {},
                           .sharding = job.sharding};
  TANDEM_ASSIGN_OR_RETURN(quantize.recipe, RecipeOf(*job.quantization));
  return CalibrateAndQuantize(std::move(quantize),
                              {.tokenizer_dir = {},
                               .dataset = job.calib_dataset,
                               .size = job.quantization->calib_size,
                               .batch_size = job.quantization->calib_batch_size},
                              job.backend, interrupt, console)
      .status();
}

// In the syntax of the file.
std::string LineOf(const Property& property) {
  std::string line;
  const auto append = [&line](std::string_view text, std::string_view escaped) {
    for (const char c : text) {
      constexpr std::string_view kControls = "\n\r\t\f", kLetters = "nrtf";
      if (const size_t at = kControls.find(c); at != std::string_view::npos) {
        line += std::string("\\") + kLetters[at];
        continue;
      }
      if (escaped.find(c) != std::string_view::npos) line += '\\';
      line += c;
    }
  };
  append(property.key, "\\ :=#!");
  line += '=';
  const size_t begin = std::min(property.value.find_first_not_of(' '), property.value.size());
  append(std::string_view(property.value).substr(0, begin), "\\ ");
  append(std::string_view(property.value).substr(begin), "\\");
  return line + "\n";
}

// As the container does it: the keys go along, but for the model's, which is now the folder itself.
// The file of an artifact that is replaced goes: its limits are another model's.
Status WriteProperties(const std::vector<Property>& properties, bool replaces_artifact,
                       const fs::path& folder) {
  std::string text;
  for (const Property& property : properties) {
    if (property.key != "option.model_id") text += LineOf(property);
  }
  const fs::path file = folder / kLmiProperties;
  if (!text.empty()) return WriteFileAtomically(file, text);
  std::error_code error;
  if (replaces_artifact) fs::remove(file, error);
  return error ? FailedPrecondition(file.string() + ": cannot be removed: " + error.message())
               : Status();
}

Status Partition(const OptionValues& values, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const NeoJob neo, NeoJobFromEnvironment());
  TANDEM_ASSIGN_OR_RETURN(const PartitionJob job, SettlePartition(values, neo));
  TANDEM_RETURN_IF_ERROR(CheckArtifactFolder(job.folder));
  const bool replaces_artifact = NameExists(job.folder / "config.pbtxt");
  const Interrupt interrupt;
  TANDEM_RETURN_IF_ERROR(WriteCheckpoint(job, interrupt, console));
  TANDEM_ASSIGN_OR_RETURN(
      const BuildReport report,
      Build({.checkpoint_dir = job.work, .output_dir = job.folder / "1", .limits = job.limits},
            Told("building", interrupt, console)));
  TANDEM_RETURN_IF_ERROR(
      WriteArtifactFiles(job.model, job.model, report.limits.max_batch_size, job.folder));
  const fs::path root = job.folder.parent_path();
  TANDEM_RETURN_IF_ERROR(WriteProperties(job.properties, replaces_artifact, root));
  std::error_code ignored;
  fs::remove_all(job.work, ignored);
  const std::string format = DescribeFormat({report.spec.dtype, report.spec.quantization});
  console.Say(fmt::format("{}: {}, {} rank{}, {}; `tandem serve {}` serves it", job.folder.string(),
                          format, report.sharding.num_files(),
                          report.sharding.num_files() == 1 ? "" : "s",
                          FormatBytes(report.bytes_written), root.string()));
  console.Result(nlohmann::ordered_json{{"trt_llm_model_repo", root.string()},
                                        {"quantization", format},
                                        {"tensor_parallel_degree", report.sharding.tp_size},
                                        {"pipeline_parallel_degree", report.sharding.pp_size},
                                        {"bytes", report.bytes_written},
                                        {"max_batch_size", report.limits.max_batch_size},
                                        {"max_seq_len", report.limits.max_seq_len}});
  return {};
}

Status Run(const OptionValues& values, Console& console) {
  const Status done = Partition(values, console);
  if (!done.ok()) TellNeo(done);
  return done;
}

}  // namespace

Command PartitionCommand() {
  return {.name = "partition",
          .summary =
              "Write a model with its serving.properties as the artifact that LMI's "
              "ahead-of-time compilation makes",
          .examples =
              "  tandem partition --properties_dir DIR --trt_llm_model_repo OUT \\\n"
              "    --tensor_parallel_degree 1\n"
              "  tandem partition --model_path MODEL --trt_llm_model_repo OUT --quantize awq\n",
          .options = PartitionOptionRows(),
          .run = Run};
}

}  // namespace tandem::apps
