// The config.json of a TensorRT-LLM checkpoint; an engine folder repeats it as "pretrained_config".
// docs/formats/checkpoint.md lists the keys. Pure functions.
#pragma once

#include <string>

#include "model/json_fields.h"
#include "model/sharding.h"
#include "model/spec.h"

namespace tandem {

struct CheckpointConfig {
  ModelSpec spec;
  Sharding sharding;
  // In words of ours; else in TensorRT-LLM's, which say what most weights are.
  bool describes_each_weight = false;
};

std::string CheckpointConfigToJson(const CheckpointConfig& config);
// Refuses, by key, every setting that would change the result and is not supported (weights
// in blocks or of 4-bit floats, other activations, ...).
Result<CheckpointConfig> ReadCheckpointConfig(const JsonFields& json);

}  // namespace tandem
