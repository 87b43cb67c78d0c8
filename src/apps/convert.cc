// `tandem convert`: a Hugging Face folder becomes a checkpoint in TensorRT-LLM's layout, with the
// flags of its convert_checkpoint.py.
#include "checkpoint/convert.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "apps/legacy_options.h"
#include "apps/verbs.h"

namespace tandem::apps {
namespace {

constexpr OptionSpec kOptions[] = {
    {.name = "model_dir", .meaning = "Hugging Face folder to read", .group = "Conversion"},
    {.name = "output_dir",
     .default_value = "tllm_checkpoint",
     .meaning = "Folder to write; it appears when it is whole",
     .group = "Conversion"},
    {.name = "dtype",
     .default_value = "auto",
     .meaning = "Element type of the weights; auto keeps the model's, float32 becoming float16",
     .group = "Conversion",
     .choices = "auto|float16|bfloat16|float32"},
    {.name = "tp_size",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Tensor-parallel ranks to shard for",
     .group = "Conversion",
     .choices = "1|2|4|8"},
    {.name = "pp_size",
     .type = OptionType::kInt,
     .default_value = "1",
     .meaning = "Only 1: layers are not split over ranks",
     .group = "Conversion",
     .choices = "1"},
    {.name = "use_parallel_embedding",
     .type = OptionType::kFlag,
     .meaning = "Shard the embedding too",
     .group = "Conversion"},
    {.name = "embedding_sharding_dim",
     .type = OptionType::kInt,
     .default_value = "0",
     .meaning = "Shard it by vocabulary (0) or by hidden size (1)",
     .group = "Conversion",
     .choices = "0|1"},
};

Status Run(const OptionValues& options, Console& console) {
  NameLegacyOptions(options, LegacyConvertRows());
  const ConvertOptions convert = {
      .model_dir = options.Text("model_dir"),
      .output_dir = options.Text("output_dir"),
      .dtype = options.Text("dtype"),
      .tp_size = options.Int("tp_size"),
      .parallel_embedding = options.Flag("use_parallel_embedding"),
      .embedding_sharding_dim = options.Int("embedding_sharding_dim"),
  };
  TANDEM_ASSIGN_OR_RETURN(const ConvertReport report, Convert(convert, [&](double done) {
                            console.Progress("converting", done);
                          }));
  console.Say(fmt::format("{}: {}, {} rank{}, {}", convert.output_dir.string(),
                          DTypeName(report.spec.dtype), report.tp_size,
                          report.tp_size == 1 ? "" : "s", FormatBytes(report.bytes_written)));
  console.Result(nlohmann::ordered_json{{"output_dir", convert.output_dir.string()},
                                        {"dtype", DTypeName(report.spec.dtype)},
                                        {"tp_size", report.tp_size},
                                        {"bytes", report.bytes_written}}
                     .dump());
  return {};
}

}  // namespace

Command ConvertCommand() {
  return {.name = "convert",
          .summary = "Write a Hugging Face folder as a checkpoint in TensorRT-LLM's layout",
          .examples = "  tandem convert --model_dir MODEL --output_dir CKPT --tp_size 2\n",
          .positionals = {{.name = "model_dir", .required = true}},
          .options = Join({kOptions, LegacyConvertRows()}),
          .run = Run};
}

}  // namespace tandem::apps
