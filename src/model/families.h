// The table of model families: how a Hugging Face config becomes a ModelSpec and how each format
// names a weight. Data and pure functions; a new family is a row here and a file under families/.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// What may be stored of a weight.
enum class WeightPart {
  kWeight,
  kBias,
  kScale,       // fp8: what an element of a row is multiplied with
  kInputScale,  // fp8: what an input is divided by before it is rounded
};
constexpr bool IsScale(WeightPart part) {
  return part == WeightPart::kScale || part == WeightPart::kInputScale;
}

struct Family {
  std::string_view name;                            // "llama"
  std::span<const std::string_view> architectures;  // what config.json calls it
  Result<ModelSpec> (*spec_from_hf)(const std::string& config_json);
  // Name of a part of a weight in a Hugging Face folder.
  std::string (*hf_name)(WeightRole role, int64_t layer, WeightPart part);
};

std::span<const Family> Families();
// By architecture name; UNIMPLEMENTED lists what is supported.
Result<const Family*> FindFamily(std::string_view architecture);
// The spec of a Hugging Face config.json, by the family that its "architectures" name.
Result<ModelSpec> SpecFromHfConfig(const std::string& config_json);

// Shape that a part of a weight has by the spec: [rows, cols] of a linear weight, [size] of a norm,
// [rows] of a bias or of scales, [1] of an input scale.
Shape WeightShape(const ModelSpec& spec, WeightRole role, WeightPart part);
// Its type: the spec's, or fp8 with scales in fp32.
DType WeightDType(const ModelSpec& spec, WeightRole role, WeightPart part);
// The parts that the spec gives this weight, itself first.
std::vector<WeightPart> WeightParts(const ModelSpec& spec, WeightRole role);
// True when the spec gives this weight a bias; scales, being in fp8.
bool HasBias(const ModelSpec& spec, WeightRole role);
bool HasScales(const ModelSpec& spec, WeightRole role);
// The roles that repeat per layer, and those that do not, in the order of a forward pass.
std::span<const WeightRole> LayerRoles();
std::span<const WeightRole> GlobalRoles();

}  // namespace tandem
