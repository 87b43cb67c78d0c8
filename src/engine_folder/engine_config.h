// The config.json of an engine folder: {version, pretrained_config, build_config}, the keys being
// those of TensorRT-LLM. docs/formats/engine.md. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/trtllm/config.h"

namespace tandem {

// The limits an engine was built for; the runtime stays within them.
struct BuildLimits {
  int64_t max_batch_size = 2048;
  int64_t max_input_len = 1024;
  int64_t max_seq_len = 0;  // 0: the model's trained length
  int64_t max_num_tokens = 8192;
  int64_t max_beam_width = 1;
  int64_t max_draft_len = 0;
  std::optional<DType> kv_cache_dtype =
      {};  // served with unless asked otherwise; none: the model's
  bool operator==(const BuildLimits&) const = default;
};

// Fills in max_seq_len and lowers limits that exceed it; refuses impossible ones with their names.
Result<BuildLimits> SettleLimits(BuildLimits limits, const ModelSpec& spec);

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
