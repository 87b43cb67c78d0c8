// The table of model families: how a Hugging Face config becomes a ModelSpec and how each format names
// a weight. Data and pure functions; a new family is a row here and a file under families/.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/spec.h"

namespace tandem {

// The weights of a decoder under their canonical names. Layer weights repeat per layer.
enum class WeightRole {
  kEmbedding,
  kInputNorm,
  kQuery,
  kKey,
  kValue,
  kAttentionOut,
  kPostNorm,
  kGate,
  kUp,
  kDown,
  kFinalNorm,
  kHead,
};

struct Family {
  std::string_view name;                             // "llama"
  std::span<const std::string_view> architectures;   // what config.json calls it
  Result<ModelSpec> (*spec_from_hf)(const std::string& config_json);
  // Name of a weight in a Hugging Face folder; `bias` asks for its bias.
  std::string (*hf_name)(WeightRole role, int64_t layer, bool bias);
};

std::span<const Family> Families();
// By architecture name; UNIMPLEMENTED lists what is supported.
Result<const Family*> FindFamily(std::string_view architecture);

}  // namespace tandem
