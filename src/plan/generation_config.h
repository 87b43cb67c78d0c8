// The sampling defaults that travel with a model: generation_config.json, as transformers writes
// it. A pure value; what is absent stays absent, so that each front end can fall back to its own
// default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

struct GenerationDefaults {
  std::optional<bool> do_sample;  // false: greedy, whatever temperature says
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> no_repeat_ngram_size;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> min_new_tokens;
  std::vector<int64_t> eos_ids;
  std::vector<int64_t> bos_ids;
};

// INVALID_ARGUMENT names the key whose value has the wrong type or range.
Result<GenerationDefaults> GenerationDefaultsFromJson(const std::string& text);
// Of a model's folder; all absent when it has no generation_config.json.
Result<GenerationDefaults> ReadGenerationDefaults(const std::filesystem::path& folder);

}  // namespace tandem
