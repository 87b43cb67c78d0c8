#include "quantize/quantized_source.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "ops/round_row.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

using Element = QuantScheme::Element;

constexpr int64_t kGrainRows = 16;

// What maps the largest magnitude to the largest element.
float ScaleFor(float largest, Element element) {
  const float scale = largest / ops::LargestElement(element);
  return std::isnormal(scale) ? scale : 1.0f;
}

}  // namespace

ModelSpec QuantizedSpec(const ModelSpec& plain, const QuantizeRecipe& recipe) {
  ModelSpec spec = plain;
  spec.quantization = recipe.scheme;
  if (recipe.cache_scales) spec.cache_scales = recipe.cache_scales;
  return spec;
}

QuantizedSource::QuantizedSource(WeightSource& plain, const QuantizeRecipe& recipe,
                                 CalibrationOf calibration, ThreadPool& pool)
    : plain_(plain),
      recipe_(recipe),
      calibration_of_(std::move(calibration)),
      pool_(pool),
      spec_(QuantizedSpec(plain.spec(), recipe)) {}

Status QuantizedSource::LoadCalibration(int64_t layer) {
  if (calibration_of_ == nullptr || layer == layer_) return {};
  TANDEM_ASSIGN_OR_RETURN(calibration_, calibration_of_(layer));
  inputs_ = InputsOf(spec_, layer);
  layer_ = layer;
  return {};
}

const std::vector<float>& QuantizedSource::OutputScales(const WeightId& id) {
  output_scales_.clear();
  for (const LayerInput& input : inputs_) {
    if (input.absorber != id.role || input.id.expert != id.expert) continue;
    const auto scales = calibration_.scales.find(input.id);
    if (scales == calibration_.scales.end()) continue;
    output_scales_ = AbsorberScales(spec_, input.id.group, id.layer,
                                    RowOf(id.role).rows(spec_, id.layer), scales->second);
  }
  return output_scales_;
}

const std::vector<float>* QuantizedSource::InputScales(const WeightId& id) const {
  const auto scales = calibration_.scales.find(InputOf(spec_, id));
  return scales == calibration_.scales.end() ? nullptr : &scales->second;
}

void QuantizedSource::Release() {
  scratch_.Clear();
  plain_.Release();
}

Result<Tensor> QuantizedSource::Get(const WeightId& id) {
  const WeightRow& row = RowOf(id.role);
  if (!row.per_layer) return plain_.Get(id);
  TANDEM_RETURN_IF_ERROR(LoadCalibration(id.layer));
  switch (id.part) {
    case WeightPart::kWeight:
      if (row.quantizable && !recipe_.scheme.is_plain()) return Rounded(id);
      if (const std::vector<float>* scales = InputScales(id)) return Multiplied(id, *scales);
      return Divided(id);
    case WeightPart::kScale:
      return Rounded(id);
    case WeightPart::kInputScale: {
      // Inputs of weights in 4 bits are in fp8.
      const bool int8 = recipe_.scheme.element == Element::kInt8;
      TANDEM_ASSIGN_OR_RETURN(const Tensor scale, scratch_.Allocate(DType::kF32, {1}));
      *scale.As<float>() = ScaleFor(calibration_.largest_input.at(InputOf(spec_, id)),
                                    int8 ? Element::kInt8 : Element::kFp8E4M3);
      return scale;
    }
    case WeightPart::kCacheScale: {
      if (!recipe_.cache_scales) return plain_.Get(id);
      const std::vector<float>& largest =
          id.role == WeightRole::kKey ? calibration_.largest_key : calibration_.largest_value;
      TANDEM_ASSIGN_OR_RETURN(
          const Tensor scales,
          scratch_.Allocate(DType::kF32, {static_cast<int64_t>(largest.size())}));
      const Element element =
          *recipe_.cache_scales == DType::kI8 ? Element::kInt8 : Element::kFp8E4M3;
      std::ranges::transform(largest, scales.As<float>(),
                             [&](float value) { return ScaleFor(value, element); });
      return scales;
    }
    case WeightPart::kBias:
      return Divided(id);
    case WeightPart::kZero:
    case WeightPart::kInputFactors:
    case WeightPart::kInputOrder:
    case WeightPart::kCount:
      break;
  }
  return Internal("a part that no recipe makes");
}

// A norm, a bias or a plain weight whose outputs are scaled. What a norm adds to its weight is
// divided with it.
Result<Tensor> QuantizedSource::Divided(const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor plain, plain_.Get(id));
  const std::vector<float>& scales = OutputScales(id);
  if (scales.empty()) return plain;
  TANDEM_CHECK(plain.shape.rank() == 1, "weights that are scaled are quantized");
  const bool is_norm = RowOf(id.role).columns == nullptr && id.part == WeightPart::kWeight;
  const auto offset = is_norm ? static_cast<float>(spec_.norm.weight_offset) : 0.0f;
  std::vector<float> values(scales.size());
  const Tensor floats{values.data(), DType::kF32, plain.shape, {}};
  ConvertElements(plain, floats);
  for (size_t i = 0; i < values.size(); ++i) values[i] = (values[i] + offset) / scales[i] - offset;
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch_.Allocate(plain.dtype, plain.shape));
  ConvertElements(floats, out);
  return out;
}

// A product that is not quantized and reads what quantized ones do.
Result<Tensor> QuantizedSource::Multiplied(const WeightId& id, const std::vector<float>& scales) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor plain, plain_.Get(id));
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch_.Allocate(plain.dtype, plain.shape));
  std::vector<float> values(scales.size());
  const Tensor floats{values.data(), DType::kF32, {1, plain.dim(1)}, {}};
  for (int64_t row = 0; row < plain.dim(0); ++row) {
    ConvertElements(plain.RowRange(row, 1), floats);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i];
    ConvertElements(floats, out.RowRange(row, 1));
  }
  return out;
}

// The elements or the scales of a weight.
Result<Tensor> QuantizedSource::Rounded(const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor plain,
                          plain_.Get({id.role, id.layer, WeightPart::kWeight, id.expert}));
  const QuantScheme& scheme = recipe_.scheme;
  const int64_t rows = plain.dim(0);
  const int64_t columns = plain.dim(1);
  const auto blocks = static_cast<size_t>(scheme.column_blocks(columns));
  TANDEM_ASSIGN_OR_RETURN(const Tensor out,
                          scratch_.Allocate(WeightDType(spec_, id), WeightShape(spec_, id)));
  const std::vector<float>& output_scales = OutputScales(id);
  const std::vector<float>* const input_scales = InputScales(id);
  const auto clip = calibration_.clip.find({id.role, id.layer, WeightPart::kWeight, id.expert});
  std::atomic<bool> is_finite = true;
  pool_.ParallelFor(rows, kGrainRows, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(columns));
    std::vector<std::byte> elements(values.size());
    std::vector<float> factors(blocks);
    for (int64_t row = begin; row < end; ++row) {
      ConvertElements(plain.RowRange(row, 1), {values.data(), DType::kF32, {1, columns}, {}});
      const float divisor = output_scales.empty() ? 1.0f : output_scales[static_cast<size_t>(row)];
      for (size_t i = 0; i < values.size(); ++i) {
        const float factor = input_scales == nullptr ? 1.0f : (*input_scales)[i];
        values[i] = values[i] * factor / divisor;
      }
      ops::ClipShares shares;
      if (clip != calibration_.clip.end()) {
        shares = std::span(clip->second).subspan(static_cast<size_t>(row) * blocks, blocks);
      }
      const bool wants_elements = id.part == WeightPart::kWeight;
      const Tensor target = out.RowRange(row, 1);
      float* const scales = wants_elements ? factors.data() : target.As<float>();
      ops::RoundRow(scheme, values, shares, wants_elements ? target.data : elements.data(), scales);
      if (std::any_of(scales, scales + blocks, [](float scale) { return std::isnan(scale); })) {
        is_finite = false;
      }
    }
  });
  if (!is_finite) {
    return DataLoss("layer " + std::to_string(id.layer) + ": " +
                    std::string(RowOf(id.role).hf_name) +
                    " holds numbers that are not finite, which no scale rounds");
  }
  return out;
}

}  // namespace tandem
