#include "engine_folder/engine_folder.h"

#include <utility>
#include <vector>

#include "base/file.h"
#include "engine_folder/engine_file.h"

namespace tandem {

Result<EngineFolder> OpenEngine(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto config = EngineConfigFromJson(text);
  if (!config.ok()) return config.status().Annotate(path.string());
  const Sharding sharding = config->checkpoint.sharding;
  std::vector<std::unique_ptr<RankFile>> ranks;
  for (int64_t rank = 0; rank < sharding.num_files(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(
        auto file, EngineFile::Open(EngineFilePath(folder, rank), rank, sharding.num_files()));
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
