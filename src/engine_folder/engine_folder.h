// EngineFolder: reads the output of `tandem build`: the weights of all ranks as one source, and the
// limits that the engine was built for. The caller owns it; used by one thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/trtllm/sharded_source.h"
#include "engine_folder/engine_config.h"

namespace tandem {

struct EngineFolder {
  std::unique_ptr<ShardedSource> source;
  BuildLimits limits;
  std::string version;  // of the program that built it
};

Result<EngineFolder> OpenEngine(const std::filesystem::path& folder);

}  // namespace tandem
