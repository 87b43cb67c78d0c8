#include "engine_folder/build.h"

#include <memory>

#include "base/file.h"
#include "checkpoint/output_folder.h"
#include "engine_folder/engine_file.h"
#include "engine_folder/source.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

Status WriteRanks(WeightSource& source, const Sharding& sharding, const fs::path& folder,
                  const WriteProgress& progress) {
  std::unique_ptr<EngineFileWriter> writer;
  ShardSink sink;
  sink.begin_file = [&](int64_t file, const std::vector<FusedTensor>&) -> Status {
    TANDEM_ASSIGN_OR_RETURN(
        writer, EngineFileWriter::Create(EngineFilePath(folder, file), file, sharding.num_files()));
    return {};
  };
  sink.write = [&](const FusedTensor& info, const Tensor& tensor) {
    return writer->Append(info.name, tensor);
  };
  sink.end_file = [&] { return writer->Commit(); };
  return WriteShards(source, sharding, sink, progress);
}

}  // namespace

Result<BuildReport> Build(const BuildOptions& options, const WriteProgress& progress) {
  TANDEM_ASSIGN_OR_RETURN(const ModelSource model,
                          OpenModel(options.checkpoint_dir, std::nullopt, options.config));
  if (model.kind == ModelSource::Kind::kEngine) {
    return InvalidArgument(options.checkpoint_dir.string() +
                           ": is an engine already; build from a checkpoint");
  }
  BuildLimits wanted = options.limits;
  // A model that was calibrated for a cache in fp8 is served with one, as in TensorRT-LLM.
  if (!wanted.kv_cache_dtype && model.spec().cache_scales == DType::kF8E4M3) {
    wanted.kv_cache_dtype = DType::kF8E4M3;
  }
  TANDEM_ASSIGN_OR_RETURN(const BuildLimits limits, SettleLimits(wanted, model.spec()));
  TANDEM_ASSIGN_OR_RETURN(const auto output,
                          OutputFolder::Create(options.output_dir, RankFiles(".engine")));
  const fs::path& folder = output->temporary();
  TANDEM_RETURN_IF_ERROR(CopySideFiles(options.checkpoint_dir, options.checkpoint_dir, folder));
  TANDEM_RETURN_IF_ERROR(WriteRanks(*model.weights, model.sharding, folder, progress));
  const EngineConfig config{{model.spec(), model.sharding},
                            limits,
                            options.speculative_decoding_mode,
                            options.recorded,
                            ProgramVersion()};
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(folder / "config.json", EngineConfigToJson(config)));
  BuildReport report{model.spec(), limits, model.sharding, output->Bytes()};
  TANDEM_RETURN_IF_ERROR(output->Commit());
  return report;
}

}  // namespace tandem
