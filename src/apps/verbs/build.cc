// `tandem build`: a checkpoint becomes an engine folder, with the flags of trtllm-build. Flags that
// only the old compiler needed are recorded and listed in one log line.
#include "engine_folder/build.h"

#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "apps/cli/interrupt.h"
#include "apps/cli/legacy_options.h"
#include "apps/cli/verbs.h"
#include "apps/models/config_rows.h"
#include "base/bound_options.h"
#include "base/log.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kGroup = "Build";

template <auto kField>
BoundOption<BuildOptions> Sets(OptionSpec spec) {
  spec.group = kGroup;
  return BindOption<BuildOptions, kField>(spec);
}

// After the rows of the two lengths, over which it goes.
void SetMaxOutputLen(const OptionValues& values, const OptionSpec& spec, BuildOptions& options) {
  BuildLimits& limits = options.limits;
  if (values.Int(spec) > 0) limits.max_seq_len = limits.max_input_len + values.Int(spec);
}

// After the row of the checkpoint, which takes precedence.
void SetModelDir(const OptionValues& values, const OptionSpec& spec, BuildOptions& options) {
  if (options.checkpoint_dir.empty()) options.checkpoint_dir = values.Text(spec);
}

const BoundOptions<BuildOptions>& Rows() {
  static const BoundOptions<BuildOptions> rows({
      Sets<&BuildOptions::checkpoint_dir>(
          {.name = "checkpoint_dir",
           .meaning = "Checkpoint to read, as `tandem convert` and `tandem quantize` write it",
           .alias = "quant_ckpt_path",
           .position = Position::kOptional}),
      Sets<&BuildOptions::output_dir>(
          {.name = "output_dir",
           .default_value = "engine_outputs",
           .meaning = "Folder to write; it appears when it is complete"}),
      Sets<[](BuildOptions& o) -> auto& { return o.limits.max_batch_size; }>(
          {.name = "max_batch_size",
           .meaning = "Most sequences of one step",
           .min = 1,
           .max = 1 << 16}),
      Sets<[](BuildOptions& o) -> auto& { return o.limits.max_input_len; }>(
          {.name = "max_input_len",
           .meaning = "Most prompt tokens of one sequence",
           .min = 1,
           .max = 1 << 24}),
      Sets<[](BuildOptions& o) -> auto& { return o.limits.max_seq_len; }>(
          {.name = "max_seq_len",
           .meaning = "Most prompt and output tokens of one sequence; 0: what the model allows",
           .min = 0,
           .max = 1 << 24}),
      Sets<[](BuildOptions& o) -> auto& { return o.limits.max_num_tokens; }>(
          {.name = "max_num_tokens",
           .meaning = "Most tokens of one step",
           .min = 1,
           .max = 1 << 24}),
      Sets<[](BuildOptions& o) -> auto& { return o.limits.max_draft_len; }>(
          {.name = "max_draft_len",
           .meaning = "Longest draft that a target verifies; 0: no limit",
           .min = 0,
           .max = 64}),
      Sets<[](BuildOptions& o) -> auto& { return o.limits.max_beam_width; }>(
          {.name = "max_beam_width", .meaning = "Only 1: there is no beam search", .choices = "1"}),
      BindChoice<BuildOptions, [](BuildOptions& o) -> auto& { return o.limits.kv_cache_dtype; }>(
          {.name = "kv_cache_dtype",
           .meaning =
               "Type of stored keys and values, unless the server is told another; auto: fp8 "
               "with calibrated scales for it, else the model's own; int8 needs scales",
           .group = kGroup},
          {{"auto", std::nullopt}, {"fp8", DType::kF8E4M3}, {"int8", DType::kI8}}),
      Sets<&BuildOptions::speculative_decoding_mode>(
          {.name = "speculative_decoding_mode",
           .meaning = "draft_tokens_external for a target with a draft model",
           .choices = "none|draft_tokens_external"}),
      {{.name = "model_dir",
        .meaning = "Of build.py in release 0.5: the Hugging Face folder to read, where no "
                   "checkpoint is named",
        .group = kGroup},
       SetModelDir},
      {{.name = "max_output_len",
        .type = OptionType::kInt,
        .default_value = "0",
        .meaning = "Of old releases: max_seq_len becomes the sum of this and max_input_len",
        .group = kGroup,
        .min = 0,
        .max = 1 << 24},
       SetMaxOutputLen},
  });
  return rows;
}

// The old compiler's flags, as the engine's config.json keeps them.
std::map<std::string, std::string> Recorded(const OptionValues& values) {
  std::map<std::string, std::string> recorded;
  for (const OptionSpec& row : LegacyBuildRows()) {
    if (values.IsSet(row)) recorded[std::string(row.name)] = values.Given(row);
  }
  return recorded;
}

Status Run(const OptionValues& values, Console& console) {
  NameLegacyOptions(values, LegacyBuildRows());
  BuildOptions build = Rows().Read(values);
  if (build.checkpoint_dir.empty()) {
    return InvalidArgument("--checkpoint_dir: is required (or --model_dir, of release 0.5)");
  }
  build.config = ConfigOptionRows().Read(values);
  build.recorded = Recorded(values);
  const Interrupt interrupt;
  TANDEM_ASSIGN_OR_RETURN(const BuildReport report,
                          Build(build, Told("building", interrupt, console)));
  if (const OptionSpec* row = values.Find("use_weight_only");
      values.IsSet(*row) && values.Flag(*row) && report.spec.quantization.is_plain()) {
    LogWarning(
        "use_weight_only: weights stay in {}, because build takes them as they are; `tandem "
        "convert "
        "--use_weight_only` writes a checkpoint in integers",
        DescribeFormat({report.spec.dtype, {}}));
  }
  console.Say(fmt::format(
      "{}: {}, {} rank{}, {}; up to {} sequences of {} tokens", build.output_dir.string(),
      DescribeFormat({report.spec.dtype, report.spec.quantization}), report.sharding.num_files(),
      report.sharding.num_files() == 1 ? "" : "s", FormatBytes(report.bytes_written),
      report.limits.max_batch_size, report.limits.max_seq_len));
  console.Result(nlohmann::ordered_json{{"output_dir", build.output_dir.string()},
                                        {"tp_size", report.sharding.tp_size},
                                        {"pp_size", report.sharding.pp_size},
                                        {"bytes", report.bytes_written},
                                        {"max_batch_size", report.limits.max_batch_size},
                                        {"max_seq_len", report.limits.max_seq_len}});
  return {};
}

}  // namespace

Command BuildCommand() {
  return {
      .name = "build",
      .summary = "Write a checkpoint as an engine folder: portable, checksummed, with its limits",
      .examples = "  tandem build --checkpoint_dir CKPT --output_dir ENGINE --max_draft_len 10\n",
      .options = Join({Rows().specs(), ConfigOptionRows().specs(), LegacyBuildRows()}),
      .run = Run};
}

}  // namespace tandem::apps
