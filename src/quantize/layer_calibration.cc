#include "quantize/layer_calibration.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "quantize/input_scales.h"
#include "tensor/convert.h"
#include "tensor/safetensors.h"

namespace tandem {
namespace {

using InputScales = QuantizeRecipe::InputScales;

Result<GroupWeights> WeightsOf(WeightSource& source, std::span<const WeightId> product) {
  const ModelSpec& spec = source.spec();
  const int64_t layer = product.front().layer;
  GroupWeights weights{.columns = RowOf(product.front().role).columns(spec, layer),
                       .dtype = spec.dtype,
                       .values = {}};
  for (const WeightId& id : product) weights.rows += RowOf(id.role).rows(spec, layer);
  weights.values.resize(static_cast<size_t>(weights.rows * weights.columns));
  float* values = weights.values.data();
  for (const WeightId& id : product) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, source.Get(id));
    ConvertElements(stored, {values, DType::kF32, stored.shape, {}});
    values += stored.NumElements();
    source.Release();
  }
  return weights;
}

std::vector<int64_t> SharedColumns(const ModelSpec& spec, const LayerInput& input, int64_t layer) {
  std::vector<int64_t> shared(static_cast<size_t>(input.columns));
  for (size_t i = 0; i < shared.size(); ++i) {
    shared[i] = AbsorberRow(spec, input.id.group, layer, static_cast<int64_t>(i));
  }
  return shared;
}

// A norm takes over the scales in its own type: the scales become what that makes of them, so that
// rounding the norm changes nothing.
Status FitToNorm(WeightSource& source, WeightRole norm, int64_t layer, std::vector<float>& scales) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> weight, ReadFloats(source, {norm, layer}));
  const auto offset = static_cast<float>(source.spec().norm.weight_offset);
  for (size_t i = 0; i < scales.size(); ++i) {
    const float whole = weight[i] + offset;
    float divided = whole / scales[i] - offset;
    const DType dtype = source.spec().dtype;
    if (dtype == DType::kBF16) divided = ToFloat(ToBFloat16(divided));
    if (dtype == DType::kF16) divided = ToFloat(ToFloat16(divided));
    divided += offset;
    const float exact = whole / divided;
    if (std::isnormal(divided) && std::isnormal(exact) && exact > 0.0f) scales[i] = exact;
  }
  return {};
}

void ScaleColumns(std::span<const float> scales, GroupWeights& weights) {
  for (size_t i = 0; i < weights.values.size(); ++i) {
    weights.values[i] *= scales[i % scales.size()];
  }
}

// Clipping queries and keys shifts attention scores, which costs more than it gains.
bool IsClipped(const QuantizeRecipe& recipe, const WeightId& id) {
  return recipe.input_scales == InputScales::kAwq && RowOf(id.role).pack != WeightPack::kQkv;
}

// One way of choosing scales for all products of an input.
Result<std::vector<float>> ChooseScales(WeightSource& source, int64_t layer,
                                        const LayerInput& input, const InputStatistics& seen,
                                        const QuantizeRecipe& recipe, ops::Backend& backend,
                                        ThreadPool& pool) {
  const std::vector<int64_t> shared = SharedColumns(source.spec(), input, layer);
  const bool powers_of_two = !input.plain.empty();
  if (recipe.input_scales == InputScales::kSmoothQuant) {
    std::vector<float> largest;
    for (const std::vector<WeightId>& product : input.products) {
      TANDEM_ASSIGN_OR_RETURN(const GroupWeights weights, WeightsOf(source, product));
      RaiseToLargest(weights, largest);
    }
    std::vector<float> scales =
        SmoothQuantScales(seen, std::move(largest), shared, recipe.smooth_alpha);
    if (powers_of_two) RoundToPowersOfTwo(scales);
    return scales;
  }
  AwqSearch search(seen, shared, powers_of_two, recipe.scheme, backend, pool);
  for (const std::vector<WeightId>& product : input.products) {
    TANDEM_ASSIGN_OR_RETURN(const GroupWeights weights, WeightsOf(source, product));
    TANDEM_RETURN_IF_ERROR(search.Add(weights));
  }
  return search.Best();
}

// Of the weights of one product, after the scales.
Status ClipProduct(WeightSource& source, std::span<const WeightId> product,
                   const InputStatistics& seen, std::span<const float> scales,
                   const QuantizeRecipe& recipe, ThreadPool& pool, LayerCalibration& out) {
  TANDEM_ASSIGN_OR_RETURN(GroupWeights weights, WeightsOf(source, product));
  ScaleColumns(scales, weights);
  const std::vector<float> shares = AwqClipShares(seen, scales, weights, recipe.scheme, pool);
  const int64_t blocks = recipe.scheme.column_blocks(weights.columns);
  int64_t first = 0;
  for (const WeightId& id : product) {
    const int64_t count = RowOf(id.role).rows(source.spec(), id.layer) * blocks;
    out.clip[id].assign(shares.begin() + first, shares.begin() + first + count);
    first += count;
  }
  return {};
}

// An expert that no sample has chosen keeps its weights' range: no row judges another one.
Status CalibrateInput(WeightSource& source, int64_t layer, const LayerInput& input,
                      const InputStatistics& seen, const QuantizeRecipe& recipe,
                      ops::Backend& backend, ThreadPool& pool, LayerCalibration& out) {
  std::vector<float> scales(seen.largest.size(), 1.0f);
  if (recipe.input_scales != InputScales::kNone && input.absorber) {
    if (seen.kept_rows > 0) {
      TANDEM_ASSIGN_OR_RETURN(scales,
                              ChooseScales(source, layer, input, seen, recipe, backend, pool));
      if (RowOf(*input.absorber).columns == nullptr) {
        TANDEM_RETURN_IF_ERROR(FitToNorm(source, *input.absorber, layer, scales));
      }
    }
    out.scales[input.id] = scales;
  }
  for (const std::vector<WeightId>& product : input.products) {
    if (!IsClipped(recipe, product.front())) continue;
    TANDEM_RETURN_IF_ERROR(ClipProduct(source, product, seen, scales, recipe, pool, out));
  }
  float largest = 0.0f;
  for (size_t i = 0; i < scales.size(); ++i) {
    largest = std::max(largest, seen.largest[i] / scales[i]);
  }
  if (!std::isfinite(largest)) {
    return DataLoss("layer " + std::to_string(layer) +
                    ": the activations of a calibration sample are not finite");
  }
  out.largest_input[input.id] = largest;
  return {};
}

// An expert that no sample has chosen gets the range of those that one has.
void FillUnseen(const LayerStatistics& statistics, LayerCalibration& out) {
  float largest = 0.0f;
  for (const auto& [id, input] : out.largest_input) {
    if (id.group == InputGroup::kExpertOut) largest = std::max(largest, input);
  }
  for (auto& [id, input] : out.largest_input) {
    if (statistics.inputs.at(id).num_rows == 0) input = largest;
  }
}

// Of each key-value head, once the rows of its weight are divided by the scales of the product that
// reads its outputs.
std::vector<float> LargestValues(const ModelSpec& spec, int64_t layer, std::vector<float> rows,
                                 const LayerCalibration& calibration) {
  constexpr InputGroup kReader = InputGroup::kAttentionOut;
  const auto scales = calibration.scales.find({kReader});
  if (scales != calibration.scales.end()) {
    const std::vector<float> divisors =
        AbsorberScales(spec, kReader, layer, std::ssize(rows), scales->second);
    std::ranges::transform(rows, divisors, rows.begin(), std::divides());
  }
  const auto dim = static_cast<size_t>(spec.layer(layer).attention.head_dim);
  std::vector<float> largest(rows.size() / dim, 0.0f);
  for (size_t i = 0; i < rows.size(); ++i) largest[i / dim] = std::max(largest[i / dim], rows[i]);
  return largest;
}

std::string ScalesName(const InputId& id) {
  return "scales." + std::to_string(static_cast<int>(id.group)) + "." + std::to_string(id.expert);
}
std::string ClipName(const WeightId& id) {
  return "clip." + WithNumber(RowOf(id.role).hf_name, id.expert);
}

}  // namespace

Result<LayerCalibration> Calibrate(WeightSource& source, int64_t layer,
                                   const LayerStatistics& statistics, const QuantizeRecipe& recipe,
                                   ops::Backend& backend, ThreadPool& pool) {
  LayerCalibration calibration;
  for (const LayerInput& input : InputsOf(source.spec(), layer)) {
    TANDEM_RETURN_IF_ERROR(CalibrateInput(source, layer, input, statistics.inputs.at(input.id),
                                          recipe, backend, pool, calibration));
  }
  FillUnseen(statistics, calibration);
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
  for (const auto& [id, scales] : calibration.scales) add(ScalesName(id), scales);
  for (const auto& [id, shares] : calibration.clip) add(ClipName(id), shares);
  std::vector<float> largest;  // in the order of the map
  for (const auto& [id, input] : calibration.largest_input) largest.push_back(input);
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
  for (const LayerInput& input : InputsOf(spec, layer)) {
    calibration.largest_input[input.id] = 0.0f;
    if (recipe.input_scales != InputScales::kNone && input.absorber) {
      TANDEM_RETURN_IF_ERROR(
          read(ScalesName(input.id), input.columns, calibration.scales[input.id]));
    }
    const int64_t blocks =
        recipe.scheme.is_plain() ? 0 : recipe.scheme.column_blocks(input.columns);
    for (const std::vector<WeightId>& product : input.products) {
      for (const WeightId& id : product) {
        if (!IsClipped(recipe, id)) continue;
        TANDEM_RETURN_IF_ERROR(
            read(ClipName(id), RowOf(id.role).rows(spec, layer) * blocks, calibration.clip[id]));
      }
    }
  }
  std::vector<float> largest;
  TANDEM_RETURN_IF_ERROR(read("largest_input", std::ssize(calibration.largest_input), largest));
  size_t next = 0;
  for (auto& [id, input] : calibration.largest_input) input = largest[next++];
  const int64_t heads = spec.layer(layer).attention.num_kv_heads;
  TANDEM_RETURN_IF_ERROR(read("largest_key", heads, calibration.largest_key));
  TANDEM_RETURN_IF_ERROR(read("largest_value", heads, calibration.largest_value));
  return calibration;
}

}  // namespace tandem
