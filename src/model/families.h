// The table of model families: how a Hugging Face config becomes a ModelSpec and how each format
// names a weight. Data and pure functions; a new family is a row here and a file under families/.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/spec.h"
#include "tensor/tensor.h"

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
  std::string_view name;                            // "llama"
  std::span<const std::string_view> architectures;  // what config.json calls it
  Result<ModelSpec> (*spec_from_hf)(const std::string& config_json);
  // Name of a weight in a Hugging Face folder; `bias` asks for its bias.
  std::string (*hf_name)(WeightRole role, int64_t layer, bool bias);
};

std::span<const Family> Families();
// By architecture name; UNIMPLEMENTED lists what is supported.
Result<const Family*> FindFamily(std::string_view architecture);
// The spec of a Hugging Face config.json, by the family that its "architectures" name.
Result<ModelSpec> SpecFromHfConfig(const std::string& config_json);

// Shape that a weight has by the spec; [rows, cols] of a linear weight, [size] of a norm or bias.
Shape WeightShape(const ModelSpec& spec, WeightRole role, bool bias);
// True when the spec gives this weight a bias.
bool HasBias(const ModelSpec& spec, WeightRole role);
// The roles that repeat per layer, and those that do not, in the order of a forward pass.
std::span<const WeightRole> LayerRoles();
std::span<const WeightRole> GlobalRoles();

}  // namespace tandem
