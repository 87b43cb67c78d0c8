// `tandem build`: a checkpoint becomes an engine folder, with the flags of trtllm-build. What the
// old compiler needed is recorded and named in one log line.
#include "engine_folder/build.h"

#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "apps/legacy_options.h"
#include "apps/verbs.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kGroup = "Build";

constexpr OptionSpec kOptions[] = {
    {.name = "checkpoint_dir",
     .meaning = "Checkpoint to read, as `tandem convert` writes it",
     .group = kGroup},
    {.name = "output_dir",
     .default_value = "engine_outputs",
     .meaning = "Folder to write; it appears when it is whole",
     .group = kGroup},
    {.name = "max_batch_size",
     .type = OptionType::kInt,
     .default_value = "2048",
     .meaning = "Sequences a step at most",
     .group = kGroup,
     .min = 1,
     .max = 1 << 16},
    {.name = "max_input_len",
     .type = OptionType::kInt,
     .default_value = "1024",
     .meaning = "Prompt tokens at most",
     .group = kGroup,
     .min = 1,
     .max = 1 << 24},
    {.name = "max_seq_len",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Prompt and output tokens at most; 0: what the model allows",
     .group = kGroup,
     .min = 0,
     .max = 1 << 24},
    {.name = "max_output_len",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Of old: makes max_seq_len the sum of this and max_input_len",
     .group = kGroup,
     .min = 0,
     .max = 1 << 24},
    {.name = "max_num_tokens",
     .type = OptionType::kInt,
     .default_value = "8192",
     .meaning = "Rows of a step at most",
     .group = kGroup,
     .min = 1,
     .max = 1 << 24},
    {.name = "max_draft_len",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Longest draft that a target verifies; 0: no bound of its own",
     .group = kGroup,
     .min = 0,
     .max = 64},
    {.name = "max_beam_width",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Only 1: there is no beam search",
     .group = kGroup,
     .choices = "1"},
    {.name = "speculative_decoding_mode",
     .default_value = "none",
     .meaning = "draft_tokens_external for a target with a draft model",
     .group = kGroup,
     .choices = "none|draft_tokens_external"},
};

// What the old compiler was told, as the engine's config.json keeps it.
std::map<std::string, std::string> Recorded(const OptionValues& options) {
  std::map<std::string, std::string> recorded;
  for (const OptionSpec& row : LegacyBuildRows()) {
    if (options.IsSet(row.name)) recorded[std::string(row.name)] = options.Given(row.name);
  }
  return recorded;
}

Status Run(const OptionValues& options, Console& console) {
  NameLegacyOptions(options, LegacyBuildRows());
  BuildOptions build;
  build.checkpoint_dir = options.Text("checkpoint_dir");
  build.output_dir = options.Text("output_dir");
  build.speculative_decoding_mode = options.Text("speculative_decoding_mode");
  build.recorded = Recorded(options);
  build.limits.max_batch_size = options.Int("max_batch_size");
  build.limits.max_input_len = options.Int("max_input_len");
  build.limits.max_seq_len = options.Int("max_seq_len");
  if (options.Int("max_output_len") > 0) {
    build.limits.max_seq_len = options.Int("max_input_len") + options.Int("max_output_len");
  }
  build.limits.max_num_tokens = options.Int("max_num_tokens");
  build.limits.max_draft_len = options.Int("max_draft_len");
  TANDEM_ASSIGN_OR_RETURN(const BuildReport report,
                          Build(build, [&](double done) { console.Progress("building", done); }));
  console.Say(fmt::format("{}: {}, {} rank{}, {}; up to {} sequences of {} tokens",
                          build.output_dir.string(), DTypeName(report.spec.dtype), report.tp_size,
                          report.tp_size == 1 ? "" : "s", FormatBytes(report.bytes_written),
                          report.limits.max_batch_size, report.limits.max_seq_len));
  console.Result(nlohmann::ordered_json{{"output_dir", build.output_dir.string()},
                                        {"tp_size", report.tp_size},
                                        {"bytes", report.bytes_written},
                                        {"max_batch_size", report.limits.max_batch_size},
                                        {"max_seq_len", report.limits.max_seq_len}}
                     .dump());
  return {};
}

}  // namespace

Command BuildCommand() {
  return {
      .name = "build",
      .summary = "Write a checkpoint as an engine folder: portable, checksummed, with its limits",
      .examples = "  tandem build --checkpoint_dir CKPT --output_dir ENGINE --max_draft_len 10\n",
      .positionals = {{.name = "checkpoint_dir", .required = true}},
      .options = Join({kOptions, LegacyBuildRows()}),
      .run = Run};
}

}  // namespace tandem::apps
