#include "engine_folder/build.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "checkpoint/output_folder.h"
#include "engine_folder/engine_config.h"
#include "engine_folder/engine_file.h"
#include "engine_folder/source.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

fs::path RankPath(const fs::path& folder, int64_t rank) {
  return folder / ("rank" + std::to_string(rank) + ".engine");
}

Status WriteRanks(WeightSource& source, const Sharding& sharding, const fs::path& folder,
                  const WriteProgress& progress) {
  std::unique_ptr<EngineFileWriter> writer;
  ShardSink sink;
  sink.begin_rank = [&](int64_t rank, const std::vector<FusedTensor>&) -> Status {
    TANDEM_ASSIGN_OR_RETURN(
        writer, EngineFileWriter::Create(RankPath(folder, rank), rank, sharding.tp_size));
    return {};
  };
  sink.write = [&](const FusedTensor& info, const Tensor& tensor) {
    return writer->Append(info.name, tensor);
  };
  sink.end_rank = [&] { return writer->Commit(); };
  return WriteShards(source, sharding, sink, progress);
}

struct NamedLimit {
  const char* name;
  int64_t BuildLimits::* value;
  int64_t min;
  int64_t max;
};
constexpr std::array kLimits = {
    NamedLimit{"max_batch_size", &BuildLimits::max_batch_size, 1, 1 << 20},
    NamedLimit{"max_input_len", &BuildLimits::max_input_len, 1, int64_t{1} << 30},
    NamedLimit{"max_seq_len", &BuildLimits::max_seq_len, 0, int64_t{1} << 30},
    NamedLimit{"max_num_tokens", &BuildLimits::max_num_tokens, 1, int64_t{1} << 30},
    NamedLimit{"max_beam_width", &BuildLimits::max_beam_width, 1, 1},
    NamedLimit{"max_draft_len", &BuildLimits::max_draft_len, 0, 1024},
};

}  // namespace

Result<BuildLimits> SettleLimits(BuildLimits limits, const ModelSpec& spec) {
  for (const NamedLimit& limit : kLimits) {
    const int64_t value = limits.*limit.value;
    if (value >= limit.min && value <= limit.max) continue;
    return InvalidArgument(std::string(limit.name) + " is " + std::to_string(value) +
                           "; it must be between " + std::to_string(limit.min) + " and " +
                           std::to_string(limit.max));
  }
  if (limits.max_seq_len == 0) limits.max_seq_len = spec.max_positions;
  if (limits.max_seq_len > spec.max_positions) {
    LogWarning("max_seq_len {} is beyond the {} positions that the model was trained for",
               limits.max_seq_len, spec.max_positions);
  }
  limits.max_input_len = std::min(limits.max_input_len, limits.max_seq_len);
  return limits;
}

Result<BuildReport> Build(const BuildOptions& options, const WriteProgress& progress) {
  TANDEM_ASSIGN_OR_RETURN(const ModelSource model, OpenModel(options.checkpoint_dir));
  if (model.kind == ModelSource::Kind::kEngine) {
    return InvalidArgument(options.checkpoint_dir.string() +
                           ": is an engine already; build from a checkpoint");
  }
  TANDEM_ASSIGN_OR_RETURN(const BuildLimits limits, SettleLimits(options.limits, model.spec()));
  TANDEM_ASSIGN_OR_RETURN(const auto output, OutputFolder::Create(options.output_dir, ".engine"));
  const fs::path& folder = output->temporary();
  TANDEM_RETURN_IF_ERROR(CopySideFiles(options.checkpoint_dir, folder));
  TANDEM_RETURN_IF_ERROR(WriteRanks(*model.weights, model.sharding, folder, progress));
  const EngineConfig config{{model.spec(), model.sharding},
                            limits,
                            options.speculative_decoding_mode,
                            options.recorded,
                            ProgramVersion()};
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(folder / "config.json", EngineConfigToJson(config)));
  BuildReport report{model.spec(), limits, model.sharding.tp_size, output->Bytes()};
  TANDEM_RETURN_IF_ERROR(output->Commit());
  return report;
}

Result<EngineFolder> OpenEngine(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto config = EngineConfigFromJson(text);
  if (!config.ok()) return config.status().Annotate(path.string());
  const Sharding sharding = config->checkpoint.sharding;
  std::vector<std::unique_ptr<RankFile>> ranks;
  for (int64_t rank = 0; rank < sharding.tp_size; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(auto file,
                            EngineFile::Open(RankPath(folder, rank), rank, sharding.tp_size));
    ranks.push_back(std::move(file));
  }
  EngineFolder engine;
  engine.limits = config->limits;
  engine.version = config->version;
  TANDEM_ASSIGN_OR_RETURN(engine.source, ShardedSource::Create(std::move(config->checkpoint.spec),
                                                               sharding, std::move(ranks)));
  return engine;
}

}  // namespace tandem
