// `tandem convert`: a Hugging Face folder becomes a checkpoint in TensorRT-LLM's layout, with the
// flags of its convert_checkpoint.py.
#include "checkpoint/convert.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/legacy_options.h"
#include "apps/verbs.h"
#include "base/bound_options.h"
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
      Sets<&ConvertOptions::model_dir>({.name = "model_dir",
                                        .meaning = "Hugging Face folder to read",
                                        .position = Position::kRequired}),
      Sets<&ConvertOptions::output_dir>(
          {.name = "output_dir",
           .default_value = "tllm_checkpoint",
           .meaning = "Folder to write; it appears when it is complete"}),
      Sets<&ConvertOptions::dtype>(
          {.name = "dtype",
           .meaning = "Element type of the weights; auto keeps the model's, but float32 becomes "
                      "float16",
           .choices = "auto|float16|bfloat16|float32"}),
      Sets<&ConvertOptions::tp_size>({.name = "tp_size",
                                      .meaning = "Tensor-parallel ranks to shard for",
                                      .choices = "1|2|4|8"}),
      Sets<&ConvertOptions::parallel_embedding>(
          {.name = "use_parallel_embedding", .meaning = "Shard the embedding too"}),
      Sets<&ConvertOptions::embedding_sharding_dim>(
          {.name = "embedding_sharding_dim",
           .meaning = "Shard the embedding by vocabulary (0) or by hidden size (1)",
           .choices = "0|1"}),
  });
  return rows;
}

constexpr OptionSpec kRefused[] = {
    {.name = "pp_size",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Only 1: layers are not split over ranks",
     .group = "Conversion",
     .choices = "1"},
};

Status Run(const OptionValues& values, Console& console) {
  NameLegacyOptions(values, LegacyConvertRows());
  const ConvertOptions convert = Rows().Read(values);
  TANDEM_RETURN_IF_ERROR(CheckModelFolder(convert.model_dir));
  TANDEM_ASSIGN_OR_RETURN(const ConvertReport report, Convert(convert, [&](double done) {
                            console.Progress("converting", done);
                          }));
  console.Say(fmt::format("{}: {}, {} rank{}, {}", convert.output_dir.string(),
                          DTypeName(report.spec.dtype), report.tp_size,
                          report.tp_size == 1 ? "" : "s", FormatBytes(report.bytes_written)));
  console.Result(nlohmann::ordered_json{{"output_dir", convert.output_dir.string()},
                                        {"dtype", DTypeName(report.spec.dtype)},
                                        {"tp_size", report.tp_size},
                                        {"bytes", report.bytes_written}});
  return {};
}

}  // namespace

Command ConvertCommand() {
  return {.name = "convert",
          .summary = "Write a Hugging Face folder as a checkpoint in TensorRT-LLM's layout",
          .examples = "  tandem convert --model_dir MODEL --output_dir CKPT --tp_size 2\n",
          .options = Join({Rows().specs(), kRefused, LegacyConvertRows()}),
          .run = Run};
}

}  // namespace tandem::apps
