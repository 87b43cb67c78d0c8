#include "model/families.h"

#include <array>

#include "model/families/llama.h"
#include "model/json_fields.h"

namespace tandem {
namespace {

const std::array kFamilies = {LlamaFamily()};

constexpr std::array kLayerRoles = {
    WeightRole::kInputNorm, WeightRole::kQuery,        WeightRole::kKey,
    WeightRole::kValue,     WeightRole::kAttentionOut, WeightRole::kPostNorm,
    WeightRole::kGate,      WeightRole::kUp,           WeightRole::kDown};
constexpr std::array kGlobalRoles = {WeightRole::kEmbedding, WeightRole::kFinalNorm,
                                     WeightRole::kHead};

struct MatrixSize {
  int64_t rows;  // output features
  int64_t cols;  // input features; 0 for a vector
};

MatrixSize SizeOfRole(const ModelSpec& spec, WeightRole role) {
  const int64_t hidden = spec.hidden_size;
  const int64_t query = spec.num_heads * spec.head_dim;
  switch (role) {
    case WeightRole::kEmbedding:
    case WeightRole::kHead:
      return {spec.vocab_size, hidden};
    case WeightRole::kInputNorm:
    case WeightRole::kPostNorm:
    case WeightRole::kFinalNorm:
      return {hidden, 0};
    case WeightRole::kQuery:
      return {query, hidden};
    case WeightRole::kKey:
    case WeightRole::kValue:
      return {spec.num_kv_heads * spec.head_dim, hidden};
    case WeightRole::kAttentionOut:
      return {hidden, query};
    case WeightRole::kGate:
    case WeightRole::kUp:
      return {spec.intermediate_size, hidden};
    case WeightRole::kDown:
      return {hidden, spec.intermediate_size};
  }
  return {0, 0};
}

}  // namespace

std::span<const Family> Families() { return kFamilies; }

Result<const Family*> FindFamily(std::string_view architecture) {
  std::string supported;
  for (const Family& family : kFamilies) {
    for (const std::string_view name : family.architectures) {
      if (name == architecture) return &family;
      supported += (supported.empty() ? "" : ", ") + std::string(name);
    }
  }
  return Unimplemented("architecture \"" + std::string(architecture.substr(0, 100)) +
                       "\" is not supported; supported are: " + supported);
}

std::span<const WeightRole> LayerRoles() { return kLayerRoles; }
std::span<const WeightRole> GlobalRoles() { return kGlobalRoles; }

Shape WeightShape(const ModelSpec& spec, WeightRole role, WeightPart part) {
  if (part == WeightPart::kInputScale) return {1};
  const MatrixSize size = SizeOfRole(spec, role);
  return part != WeightPart::kWeight || size.cols == 0 ? Shape{size.rows}
                                                       : Shape{size.rows, size.cols};
}

DType WeightDType(const ModelSpec& spec, WeightRole role, WeightPart part) {
  switch (part) {
    case WeightPart::kWeight:
      return HasScales(spec, role) ? DType::kF8E4M3 : spec.dtype;
    case WeightPart::kBias:
      return spec.dtype;
    case WeightPart::kScale:
    case WeightPart::kInputScale:
      return DType::kF32;
  }
  return spec.dtype;
}

std::vector<WeightPart> WeightParts(const ModelSpec& spec, WeightRole role) {
  std::vector<WeightPart> parts = {WeightPart::kWeight};
  if (HasBias(spec, role)) parts.push_back(WeightPart::kBias);
  if (!HasScales(spec, role)) return parts;
  parts.push_back(WeightPart::kScale);
  if (spec.fixed_input_scales) parts.push_back(WeightPart::kInputScale);
  return parts;
}

bool HasScales(const ModelSpec& spec, WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedding:
    case WeightRole::kHead:
    case WeightRole::kInputNorm:
    case WeightRole::kPostNorm:
    case WeightRole::kFinalNorm:
      return false;
    default:
      return spec.fp8_linears;
  }
}

bool HasBias(const ModelSpec& spec, WeightRole role) {
  switch (role) {
    case WeightRole::kQuery:
    case WeightRole::kKey:
    case WeightRole::kValue:
    case WeightRole::kAttentionOut:
      return spec.attention_bias;
    case WeightRole::kGate:
    case WeightRole::kUp:
    case WeightRole::kDown:
      return spec.mlp_bias;
    default:
      return false;
  }
}

Result<ModelSpec> SpecFromHfConfig(const std::string& config_json) {
  TANDEM_ASSIGN_OR_RETURN(const JsonFields config, JsonFields::Parse(config_json));
  const std::vector<std::string> architectures = config.Texts("architectures");
  TANDEM_RETURN_IF_ERROR(config.status());
  if (architectures.empty()) {
    return InvalidArgument("architectures: is missing; it names the kind of model");
  }
  TANDEM_ASSIGN_OR_RETURN(const Family* family, FindFamily(architectures.front()));
  return family->spec_from_hf(config_json);
}

}  // namespace tandem
