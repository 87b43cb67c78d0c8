#include "apps/lmi/partition_job.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "apps/cli/command.h"
#include "apps/cli/file_options.h"
#include "apps/lmi/config.h"
#include "apps/lmi/folder.h"
#include "apps/lmi/key_rows.h"
#include "apps/models/artifact.h"
#include "apps/models/config_rows.h"
#include "apps/models/load_quantization.h"
#include "apps/models/local_model.h"
#include "base/bound_options.h"
#include "base/file.h"
#include "base/log.h"
#include "engine_folder/source.h"
#include "ops/backend.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTensorParallel = "option.tensor_parallel_degree";
constexpr const char* kPipelineParallel = "option.pipeline_parallel_degree";

// As on the command line.
struct PartitionOptions {
  fs::path properties_dir;
  fs::path model_repo;
  std::string tensor_parallel_degree;
  int64_t pipeline_parallel_degree = 0;  // 0: as serving.properties says
  fs::path model_path;
  std::string dtype = "auto";
  // As LMI has them.
  BuildLimits limits = {.max_batch_size = 32, .max_input_len = 1024, .max_seq_len = 1536};
};

template <auto kField>
BoundOption<PartitionOptions> Sets(OptionSpec spec) {
  spec.group = "Partition";
  return BindOption<PartitionOptions, kField>(spec);
}

const BoundOptions<PartitionOptions>& Rows() {
  using P = PartitionOptions;
  static const BoundOptions<P> rows({
      Sets<&P::properties_dir>(
          {.name = "properties_dir",
           .meaning = "Folder of serving.properties, whose keys go below the options that are "
                      "given; in a job of SageMaker Neo the default is SM_NEO_INPUT_MODEL_DIR",
           .position = Position::kOptional}),
      Sets<&P::model_repo>(
          {.name = "trt_llm_model_repo",
           .meaning = "Folder to write, which `tandem serve` opens; in a job of SageMaker Neo the "
                      "default is SM_NEO_COMPILED_MODEL_DIR",
           .alias = "save_mp_checkpoint_path"}),
      Sets<&P::tensor_parallel_degree>(
          {.name = "tensor_parallel_degree",
           .meaning =
               "Ranks to shard for, which the server runs on where it can, or max: one per GPU"}),
      Sets<&P::pipeline_parallel_degree>(
          {.name = "pipeline_parallel_degree",
           .meaning = "Pipeline stages to split the layers over, in files",
           .min = 0,
           .max = 1024}),
      Sets<&P::model_path>({.name = "model_path",
                            .meaning =
                                "Hugging Face folder, an archive of one, OWNER/MODEL of a hub, "
                                "or s3://BUCKET/PATH, instead of option.model_id and of the "
                                "properties' own folder",
                            .alias = "model_id"}),
      Sets<&P::dtype>({.name = "dtype",
                       .meaning = "Element type of what is not quantized; auto keeps the model's, "
                                  "but float32 becomes float16",
                       .choices = "auto|float16|bfloat16|float32|fp16|bf16|fp32"}),
      Sets<[](P& o) -> auto& { return o.limits.max_batch_size; }>(
          {.name = "max_batch_size",
           .meaning = "Most sequences of one step",
           .min = 1,
           .max = 1 << 16,
           .alias = "max_rolling_batch_size"}),
      Sets<[](P& o) -> auto& { return o.limits.max_input_len; }>(
          {.name = "max_input_len",
           .meaning = "Most prompt tokens of one sequence",
           .min = 1,
           .max = 1 << 24}),
      Sets<[](P& o) -> auto& { return o.limits.max_seq_len; }>(
          {.name = "max_seq_len",
           .meaning = "Most prompt and output tokens of one sequence; 0: what the model allows",
           .min = 0,
           .max = 1 << 24}),
      Sets<[](P& o) -> auto& { return o.limits.max_num_tokens; }>(
          {.name = "max_num_tokens",
           .meaning = "Most tokens of one step",
           .min = 1,
           .max = 1 << 24}),
  });
  return rows;
}

Result<LmiFile> ReadProperties(const fs::path& folder) {
  const fs::path path = folder / kLmiProperties;
  if (folder.empty() || !NameExists(path)) return LmiFile();
  return ReadLmiFile(path);
}

std::string TakeKey(LmiGivenKeys& keys, std::string_view name) {
  const auto found = keys.find(name);
  if (found == keys.end()) return {};
  std::string value = found->second.value;
  keys.erase(found);
  return value;
}

Result<int64_t> Degree(std::string_view name, const std::string& text) {
  if (text.empty()) return 1;
  if (text == "max") return std::max(1, ops::NumCudaDevices());
  const auto number = lmi_rows::ParseInteger(text, 1, 1024);
  if (!number.ok()) return number.status().Annotate(name);
  return *number;
}

// Gives options that the command line left out the values of the file and the environment.
Status SetFrom(const LmiConfig& config, OptionValues& values) {
  for (const auto& [name, value] : config.settings().options) {
    const OptionSpec* row = values.Find(name);  // the others are the server's
    if (row == nullptr || values.IsSet(*row)) continue;
    TANDEM_RETURN_IF_ERROR(values.Set(row->name, {value}, kLmiProperties));
  }
  return {};
}

std::string LongName(const std::string& dtype) {
  if (dtype == "fp16") return "float16";
  if (dtype == "bf16") return "bfloat16";
  return dtype == "fp32" ? "float32" : dtype;
}

// The model's folder: named, or of the properties, which may lie in it. Downloaded if need be.
Result<fs::path> ModelFolder(const PartitionOptions& options, const LmiSources& sources,
                             const OptionValues& values) {
  fs::path named = options.model_path;
  if (named.empty() && !sources.model_id.empty()) {
    named = FolderOfId(options.properties_dir, sources.model_id);
  }
  if (named.empty()) named = options.properties_dir;
  const std::string_view key = !options.model_path.empty() ? "--model_path"
                               : !sources.model_id.empty() ? "option.model_id"
                                                           : "--properties_dir";
  Result<fs::path> model = LocalModel(named, values);
  if (!model.ok()) return model.status().Annotate(key);
  if (const Status found = CheckHuggingFaceFolder(*model); !found.ok()) return found.Annotate(key);
  return model;
}

}  // namespace

std::vector<OptionSpec> PartitionOptionRows() {
  return Join({Rows().specs(), SourceOptionRows().specs(), LoadQuantizationRows().specs(),
               ConfigOptionRows().specs(), BackendOptionRows().specs()});
}

Result<PartitionJob> SettlePartition(const OptionValues& given, const NeoJob& neo) {
  OptionValues values = given;
  PartitionOptions options = Rows().Read(values);
  if (options.properties_dir.empty()) options.properties_dir = neo.input;
  if (options.model_repo.empty()) options.model_repo = neo.output;
  if (options.model_repo.empty()) {
    return InvalidArgument("--trt_llm_model_repo: is required: the folder to write");
  }
  if (options.properties_dir.empty() && options.model_path.empty()) {
    return InvalidArgument("--properties_dir: is required, or --model_path");
  }
  std::error_code ignored;
  if (fs::equivalent(options.properties_dir, options.model_repo, ignored)) {
    return InvalidArgument("--trt_llm_model_repo: is --properties_dir; choose another folder");
  }
  TANDEM_ASSIGN_OR_RETURN(const LmiFile file, ReadProperties(options.properties_dir));
  LmiGivenKeys keys = LmiModelKeys(ProcessEnvironment(), {}, file);
  // An artifact is sharded for as many as anybody likes; the server finds out how many it can have.
  std::string tensor = TakeKey(keys, kTensorParallel);
  std::string pipeline = TakeKey(keys, kPipelineParallel);
  if (!options.tensor_parallel_degree.empty()) tensor = options.tensor_parallel_degree;
  if (options.pipeline_parallel_degree > 0) {
    pipeline = std::to_string(options.pipeline_parallel_degree);
  }
  TANDEM_ASSIGN_OR_RETURN(const LmiConfig config, LmiConfig::ForModel(std::move(keys), {}));
  for (const std::string& note : config.notes()) LogWarning("{}", note);
  TANDEM_RETURN_IF_ERROR(SetFrom(config, values));
  const LmiSettings& settings = config.settings();
  const LoadQuantization quantization = LoadQuantizationRows().Read(values);
  NameIdleQuantization(given, quantization);
  options.limits = Rows().Read(values).limits;
  PartitionJob job{
      .properties = file.properties,
      .model = {},
      .folder = options.model_repo / kArtifactModel,
      .work = (neo.cache.empty() ? options.model_repo / kArtifactModel : neo.cache) / "checkpoint",
      .dtype = LongName(Rows().Read(values).dtype),
      .config = ConfigOptionRows().Read(values),
      .quantization = quantization.Asked(),
      .calib_dataset = quantization.calib_dataset,
      .sharding = {},
      .limits = options.limits,
      .backend = BackendOptionRows().Read(values)};
  if (const std::string& revision = settings.sources.revision; !revision.empty()) {
    TANDEM_RETURN_IF_ERROR(SetUnlessSet(values, "revision", revision, "option.revision"));
  }
  TANDEM_ASSIGN_OR_RETURN(job.model, ModelFolder(options, settings.sources, values));
  TANDEM_ASSIGN_OR_RETURN(job.sharding.tp_size, Degree(kTensorParallel, tensor));
  TANDEM_ASSIGN_OR_RETURN(job.sharding.pp_size, Degree(kPipelineParallel, pipeline));
  return job;
}

}  // namespace tandem::apps
