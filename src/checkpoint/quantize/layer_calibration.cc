#include "checkpoint/quantize/layer_calibration.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "checkpoint/quantize/input_scales.h"
#include "tensor/convert.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

using InputScales = QuantizeRecipe::InputScales;

constexpr InputGroup kGroups[] = {InputGroup::kAttention, InputGroup::kAttentionOut,
                                  InputGroup::kMlp, InputGroup::kMlpOut};

std::vector<WeightRole> RolesOf(InputGroup group) {
  std::vector<WeightRole> roles;
  for (const WeightRow& row : WeightRows()) {
    if (row.quantizable && row.input == group) roles.push_back(row.role);
  }
  return roles;
}

Result<std::vector<float>> Floats(WeightSource& source, const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor stored, source.Get(id));
  std::vector<float> values(static_cast<size_t>(stored.NumElements()));
  ConvertElements(stored, {values.data(), DType::kF32, stored.shape, {}});
  source.Release();
  return values;
}

Result<GroupWeights> WeightsOf(WeightSource& source, std::span<const WeightRole> roles,
                               int64_t layer) {
  const ModelSpec& spec = source.spec();
  GroupWeights weights{
      .columns = RowOf(roles.front()).columns(spec, layer), .dtype = spec.dtype, .values = {}};
  for (const WeightRole role : roles) weights.rows += RowOf(role).rows(spec, layer);
  weights.values.resize(static_cast<size_t>(weights.rows * weights.columns));
  float* values = weights.values.data();
  for (const WeightRole role : roles) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, source.Get({role, layer}));
    ConvertElements(stored, {values, DType::kF32, stored.shape, {}});
    values += stored.NumElements();
    source.Release();
  }
  return weights;
}

std::vector<int64_t> SharedInputs(const ModelSpec& spec, WeightRole role, int64_t layer) {
  std::vector<int64_t> shared(static_cast<size_t>(RowOf(role).columns(spec, layer)));
  for (size_t i = 0; i < shared.size(); ++i) {
    shared[i] = AbsorberRow(spec, role, layer, static_cast<int64_t>(i));
  }
  return shared;
}

// A norm takes over the scales in its own type: the scales become what that makes of them, so that
// rounding the norm changes nothing.
Status FitToNorm(WeightSource& source, WeightRole norm, int64_t layer, std::vector<float>& scales) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> weight, Floats(source, {norm, layer}));
  for (size_t i = 0; i < scales.size(); ++i) {
    float divided = weight[i] / scales[i];
    const DType dtype = source.spec().dtype;
    if (dtype == DType::kBF16) divided = ToFloat(ToBFloat16(divided));
    if (dtype == DType::kF16) divided = ToFloat(ToFloat16(divided));
    const float exact = weight[i] / divided;
    if (std::isnormal(divided) && std::isnormal(exact) && exact > 0.0f) scales[i] = exact;
  }
  return {};
}

void ScaleColumns(std::span<const float> scales, GroupWeights& weights) {
  for (size_t i = 0; i < weights.values.size(); ++i) {
    weights.values[i] *= scales[i % scales.size()];
  }
}

Status CalibrateGroup(WeightSource& source, int64_t layer, InputGroup group,
                      const InputStatistics& inputs, const QuantizeRecipe& recipe,
                      ops::Backend& backend, ThreadPool& pool, LayerCalibration& out) {
  const ModelSpec& spec = source.spec();
  const std::vector<WeightRole> roles = RolesOf(group);
  const std::optional<WeightRole> absorber = AbsorberOf(spec, roles.front(), layer);
  std::vector<float> scales(inputs.largest.size(), 1.0f);
  if (recipe.input_scales != InputScales::kNone && absorber) {
    TANDEM_ASSIGN_OR_RETURN(GroupWeights weights, WeightsOf(source, roles, layer));
    const std::vector<int64_t> shared = SharedInputs(spec, roles.front(), layer);
    if (recipe.input_scales == InputScales::kSmoothQuant) {
      scales = SmoothQuantScales(inputs, weights, shared, recipe.smooth_alpha);
    } else {
      TANDEM_ASSIGN_OR_RETURN(scales,
                              AwqScales(inputs, weights, shared, recipe.scheme, backend, pool));
    }
    if (RowOf(*absorber).columns == nullptr) {
      TANDEM_RETURN_IF_ERROR(FitToNorm(source, *absorber, layer, scales));
    }
    out.scales[group] = scales;
    // Clipping queries and keys shifts attention scores, which costs more than it gains.
    if (recipe.input_scales == InputScales::kAwq && group != InputGroup::kAttention) {
      ScaleColumns(scales, weights);
      const std::vector<float> shares = AwqClipShares(inputs, scales, weights, recipe.scheme, pool);
      const int64_t blocks = recipe.scheme.column_blocks(weights.columns);
      int64_t first = 0;
      for (const WeightRole role : roles) {
        const int64_t count = RowOf(role).rows(spec, layer) * blocks;
        out.clip[role].assign(shares.begin() + first, shares.begin() + first + count);
        first += count;
      }
    }
  }
  float largest = 0.0f;
  for (size_t i = 0; i < scales.size(); ++i) {
    largest = std::max(largest, inputs.largest[i] / scales[i]);
  }
  if (!std::isfinite(largest)) {
    return DataLoss("layer " + std::to_string(layer) +
                    ": the activations of a calibration sample are not finite");
  }
  out.largest_input[group] = largest;
  return {};
}

// Of each key-value head, once the rows of its weight are divided by the scales of the product that
// reads its outputs.
std::vector<float> LargestValues(const ModelSpec& spec, int64_t layer, std::vector<float> rows,
                                 const LayerCalibration& calibration) {
  const WeightRole reader = WeightRole::kAttentionOut;
  const auto scales = calibration.scales.find(RowOf(reader).input);
  if (scales != calibration.scales.end()) {
    std::vector<float> divisors(rows.size(), 1.0f);
    for (size_t column = 0; column < scales->second.size(); ++column) {
      const int64_t row = AbsorberRow(spec, reader, layer, static_cast<int64_t>(column));
      divisors[static_cast<size_t>(row)] = scales->second[column];
    }
    std::ranges::transform(rows, divisors, rows.begin(), std::divides());
  }
  const auto dim = static_cast<size_t>(spec.layer(layer).attention.head_dim);
  std::vector<float> largest(rows.size() / dim, 0.0f);
  for (size_t i = 0; i < rows.size(); ++i) largest[i / dim] = std::max(largest[i / dim], rows[i]);
  return largest;
}

std::string GroupName(InputGroup group) { return std::to_string(static_cast<int>(group)); }

}  // namespace

Result<LayerCalibration> Calibrate(WeightSource& source, int64_t layer,
                                   const LayerStatistics& statistics, const QuantizeRecipe& recipe,
                                   ops::Backend& backend, ThreadPool& pool) {
  LayerCalibration calibration;
  for (const InputGroup group : kGroups) {
    TANDEM_RETURN_IF_ERROR(CalibrateGroup(source, layer, group, statistics.inputs.at(group), recipe,
                                          backend, pool, calibration));
  }
  calibration.largest_key = statistics.keys;
  calibration.largest_value = LargestValues(source.spec(), layer, statistics.values, calibration);
  return calibration;
}

Status WriteCalibration(const std::filesystem::path& path, const LayerCalibration& calibration) {
  std::vector<NamedTensor> tensors;
  const auto add = [&tensors](std::string name, const std::vector<float>& values) {
    tensors.push_back({std::move(name),
                       {const_cast<float*>(values.data()),
                        DType::kF32,
                        {static_cast<int64_t>(values.size())},
                        {}}});
  };
  for (const auto& [group, scales] : calibration.scales) add("scales." + GroupName(group), scales);
  for (const auto& [role, shares] : calibration.clip) {
    add("clip." + std::string(RowOf(role).hf_name), shares);
  }
  std::vector<float> largest;
  for (const InputGroup group : kGroups) largest.push_back(calibration.largest_input.at(group));
  add("largest_input", largest);
  add("largest_key", calibration.largest_key);
  add("largest_value", calibration.largest_value);
  return WriteSafetensors(path, tensors);
}

Result<LayerCalibration> ReadCalibration(const std::filesystem::path& path, const ModelSpec& spec,
                                         int64_t layer, const QuantizeRecipe& recipe) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  const auto read = [&](const std::string& name, int64_t size, std::vector<float>& out) -> Status {
    const auto found = file->tensors().find(name);
    if (found == file->tensors().end() || found->second.dtype != DType::kF32 ||
        found->second.NumElements() != size) {
      return DataLoss(path.string() + ": \"" + name + "\" is missing or of another size");
    }
    out.resize(static_cast<size_t>(size));
    std::memcpy(out.data(), found->second.data, out.size() * sizeof(float));
    return {};
  };
  LayerCalibration calibration;
  for (const InputGroup group : kGroups) {
    if (recipe.input_scales == InputScales::kNone) break;
    const int64_t columns = RowOf(RolesOf(group).front()).columns(spec, layer);
    TANDEM_RETURN_IF_ERROR(read("scales." + GroupName(group), columns, calibration.scales[group]));
  }
  for (const WeightRow& row : WeightRows()) {
    const bool clipped = recipe.input_scales == InputScales::kAwq && row.quantizable &&
                         row.input != InputGroup::kAttention && row.input != InputGroup::kNone;
    if (!clipped) continue;
    const int64_t blocks = recipe.scheme.column_blocks(row.columns(spec, layer));
    TANDEM_RETURN_IF_ERROR(read("clip." + std::string(row.hf_name), row.rows(spec, layer) * blocks,
                                calibration.clip[row.role]));
  }
  std::vector<float> largest;
  TANDEM_RETURN_IF_ERROR(read("largest_input", std::ssize(kGroups), largest));
  for (size_t i = 0; i < std::size(kGroups); ++i)
    calibration.largest_input[kGroups[i]] = largest[i];
  const int64_t heads = spec.layer(layer).attention.num_kv_heads;
  TANDEM_RETURN_IF_ERROR(read("largest_key", heads, calibration.largest_key));
  TANDEM_RETURN_IF_ERROR(read("largest_value", heads, calibration.largest_value));
  return calibration;
}

}  // namespace tandem
