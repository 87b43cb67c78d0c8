// The config.json of an engine folder: {version, pretrained_config, build_config}, the keys being
// those of TensorRT-LLM. docs/formats/engine.md. Pure functions.
#pragma once

#include <map>
#include <string>

#include "checkpoint/trtllm_config.h"
#include "engine_folder/build.h"

namespace tandem {

struct EngineConfig {
  CheckpointConfig checkpoint;
  BuildLimits limits;
  std::string speculative_decoding_mode;
  std::map<std::string, std::string> recorded;
  std::string version;
};

std::string EngineConfigToJson(const EngineConfig& config);
// Limits missing in the file take their defaults; `recorded` is not read back.
Result<EngineConfig> EngineConfigFromJson(const std::string& text);

// "0.1.0"
std::string ProgramVersion();

}  // namespace tandem
