#include "quantize/calibration_estimate.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "quantize/input_scales.h"
#include "quantize/layer_observer.h"
#include "quantize/layer_pass.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

using InputScales = QuantizeRecipe::InputScales;

// The estimate's sample of the work: long enough to be measured, short enough to be waited for.
constexpr int64_t kSampleRows = 1024;
constexpr int64_t kSampleColumns = 2048;

std::vector<float> SampleValues(int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * kSampleColumns));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 2654435761u % 2048) / 1024.0f - 1.0f;
  }
  return values;
}

// Elements of a layer's products.
struct LayerSizes {
  double weights = 0;
  double of_a_row = 0;  // of those that a row goes through: not of every expert
  int64_t widest = 0;   // of one product
};

LayerSizes SizesOf(const ModelSpec& spec, int64_t layer) {
  const MoeSpec& moe = spec.layer(layer).moe;
  LayerSizes sizes;
  for (const LayerInput& input : InputsOf(spec, layer)) {
    for (const std::vector<WeightId>& product : input.products) {
      int64_t elements = 0;
      for (const WeightId& id : product) elements += RowOf(id.role).rows(spec, layer);
      elements *= input.columns;
      const bool by_choice = RowOf(product.front().role).per_expert;
      const double share = by_choice ? static_cast<double>(moe.routing.experts_per_token) /
                                           static_cast<double>(moe.num_experts)
                                     : 1.0;
      sizes.weights += static_cast<double>(elements);
      sizes.of_a_row += share * static_cast<double>(elements);
      sizes.widest = std::max(sizes.widest, elements);
    }
  }
  return sizes;
}

double SecondsSince(Nanos begin) { return InSeconds(SteadyClock().Now() - begin); }

// What the passes take for a weight and a token.
Result<double> SecondsOfProduct(DType dtype, ops::Backend& backend) {
  std::vector<float> values = SampleValues(kSampleRows);
  const Shape shape{kSampleRows, kSampleColumns};
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  const Tensor sample{bytes.data(), dtype, shape, {}};
  ConvertElements({values.data(), DType::kF32, shape, {}}, sample);
  TANDEM_ASSIGN_OR_RETURN(const ops::LinearWeight weight,
                          backend.PackLinear({{{.weight = sample}}}, {dtype}));
  TANDEM_ASSIGN_OR_RETURN(const Buffer x, backend.Allocate(bytes.size()));
  TANDEM_ASSIGN_OR_RETURN(
      const Buffer out,
      backend.Allocate(static_cast<size_t>(kSampleRows * kSampleRows) * SizeOf(dtype)));
  backend.CopyToDevice(x.data(), bytes.data(), bytes.size());
  constexpr int kTimes = 8;
  Nanos begin{};
  for (int run = 0; run <= kTimes; ++run) {
    backend.ops().Linear(x.View(dtype, shape), weight, out.View(dtype, {kSampleRows, kSampleRows}));
    TANDEM_RETURN_IF_ERROR(backend.Synchronize());
    if (run == 0) begin = SteadyClock().Now();  // the first touches its memory
  }
  return SecondsSince(begin) / (double{kTimes} * kSampleRows * kSampleRows * kSampleColumns);
}

// What AWQ's searches take for a weight.
Result<double> SecondsOfSearch(const QuantScheme& scheme, DType dtype, ops::Backend& backend,
                               ThreadPool& pool) {
  InputStatistics inputs{.num_rows = kKeptRows,
                         .largest = std::vector<float>(kSampleColumns, 1.0f),
                         .sum = std::vector<double>(kSampleColumns, 1.0),
                         .rows = SampleValues(kKeptRows),
                         .kept_rows = kKeptRows};
  const GroupWeights weights{kSampleRows, kSampleColumns, dtype, SampleValues(kSampleRows)};
  std::vector<int64_t> alone(kSampleColumns);
  std::iota(alone.begin(), alone.end(), 0);
  const Nanos begin = SteadyClock().Now();
  AwqSearch search(inputs, alone, /*powers_of_two=*/false, scheme, backend, pool);
  TANDEM_RETURN_IF_ERROR(search.Add(weights));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> scales, search.Best());
  AwqClipShares(inputs, scales, weights, scheme, pool);
  return SecondsSince(begin) / (double{kSampleRows} * kSampleColumns);
}

}  // namespace

Result<CalibrationEstimate> EstimateCalibration(const ModelSpec& spec, const CalibrationRows& rows,
                                                const QuantizeRecipe& recipe, int64_t layers_done,
                                                ops::Backend& backend, ThreadPool& pool) {
  CalibrationEstimate estimate;
  estimate.rows = rows.total;
  estimate.layers_done = layers_done;
  // The hidden states before a layer and after it.
  estimate.spill_bytes = 2 * rows.total * HiddenRowBytes(spec);
  TANDEM_ASSIGN_OR_RETURN(const double product, SecondsOfProduct(spec.dtype, backend));
  double search = 0.0;
  if (recipe.input_scales == InputScales::kAwq) {
    TANDEM_ASSIGN_OR_RETURN(search, SecondsOfSearch(recipe.scheme, spec.dtype, backend, pool));
  }
  int64_t widest = 0;  // weights that one search holds as fp32
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    const LayerSizes sizes = SizesOf(spec, layer);
    widest = std::max(widest, sizes.widest);
    if (layer < layers_done) continue;
    estimate.seconds += sizes.of_a_row * product * static_cast<double>(rows.total);
    estimate.seconds += sizes.weights * search;
  }
  estimate.memory_bytes = LayerPass::WorkBytes(spec, rows) + StatisticsBytes(spec, rows.total);
  if (recipe.input_scales != InputScales::kNone) {
    estimate.memory_bytes += widest * (int64_t{sizeof(float)} + 2);
  }
  return estimate;
}

}  // namespace tandem
