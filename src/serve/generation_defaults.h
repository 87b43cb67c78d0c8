// GenerationDefaults: the sampling defaults of a model folder. A plain value.
#pragma once

#include <filesystem>
#include <optional>

#include "base/status.h"
#include "runtime/request/sampling_parameters.h"

namespace tandem::serve {

struct GenerationDefaults {
  std::optional<bool> do_sample;
  SamplingFields sampling;
};

// From generation_config.json; a folder without one gives no defaults. A broken file is DATA_LOSS,
// a field of a wrong type INVALID_ARGUMENT.
Result<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir);

}  // namespace tandem::serve
