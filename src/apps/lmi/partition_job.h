// What `tandem partition` is asked for: by its options, below them by serving.properties and the
// environment as LMI reads them, and by SageMaker Neo. Plain values; main thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/lmi/neo.h"
#include "apps/lmi/properties_file.h"
#include "apps/models/calibrated_quantization.h"
#include "apps/models/devices.h"
#include "base/options.h"
#include "engine_folder/engine_config.h"
#include "model/config_options.h"
#include "model/sharding.h"

namespace tandem::apps {

// The rows of the verb.
std::vector<OptionSpec> PartitionOptionRows();

// What is partitioned, settled.
struct PartitionJob {
  std::vector<Property> properties;  // of serving.properties
  std::filesystem::path model;
  std::filesystem::path folder;  // of the model in the artifact
  std::filesystem::path work;    // of the checkpoint, which goes in the end
  std::string dtype;
  ConfigOptions config;
  std::optional<CalibratedQuantization> quantization;
  std::string calib_dataset;
  Sharding sharding;
  BuildLimits limits;
  BackendOptions backend;
};

// Says what has no effect. INVALID_ARGUMENT names the option or the key, NOT_FOUND a folder.
Result<PartitionJob> SettlePartition(const OptionValues& values, const NeoJob& neo);

}  // namespace tandem::apps
