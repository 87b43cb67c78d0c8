// GenerationDefaults: the sampling defaults of a model folder. A plain value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/status.h"

namespace tandem::serve {

struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty;
};

// From generation_config.json; a folder without one gives no defaults. A broken file is DATA_LOSS,
// a field of a wrong type INVALID_ARGUMENT.
Result<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir);

}  // namespace tandem::serve
