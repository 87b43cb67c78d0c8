#include "model/weight_parts.h"

#include <array>

#include "model/weight_roles.h"

namespace tandem {
namespace {

using Extent = WeightPartRow::Extent;
using Values = WeightPartRow::Values;

bool Always(const ModelSpec& /*spec*/, const WeightRow& /*row*/, int64_t /*layer*/) { return true; }
bool Biased(const ModelSpec& spec, const WeightRow& row, int64_t layer) {
  return row.bias != nullptr && row.bias(spec, layer);
}
bool Quantized(const ModelSpec& spec, const WeightRow& row, int64_t layer) {
  return !SchemeOf(spec, row.role, layer).is_plain();
}
bool HasZeroPoints(const ModelSpec& spec, const WeightRow& row, int64_t layer) {
  return SchemeOf(spec, row.role, layer).zero_points;
}
bool HasInputFactors(const ModelSpec& spec, const WeightRow& row, int64_t layer) {
  return SchemeOf(spec, row.role, layer).input_factors;
}
bool HasInputOrder(const ModelSpec& spec, const WeightRow& row, int64_t layer) {
  return SchemeOf(spec, row.role, layer).input_order;
}
bool InputsAreStatic(const ModelSpec& spec, const WeightRow& row, int64_t layer) {
  return SchemeOf(spec, row.role, layer).inputs == QuantScheme::Inputs::kStatic;
}
bool Cached(const ModelSpec& spec, const WeightRow& row, int64_t /*layer*/) {
  return spec.cache_scales.has_value() && !row.cache_scale.empty();
}

constexpr std::array kRows = {
    WeightPartRow{.part = WeightPart::kWeight,
                  .hf_suffix = ".weight",
                  .trtllm_suffix = ".weight",
                  .extent = Extent::kElements,
                  .values = Values::kStored,
                  .present = Always},
    WeightPartRow{.part = WeightPart::kBias,
                  .hf_suffix = ".bias",
                  .trtllm_suffix = ".bias",
                  .extent = Extent::kRows,
                  .values = Values::kPlain,
                  .present = Biased},
    WeightPartRow{.part = WeightPart::kScale,
                  .hf_suffix = ".weight_scale",
                  .trtllm_suffix = ".weights_scaling_factor",
                  .extent = Extent::kBlocks,
                  .values = Values::kFactors,
                  .present = Quantized},
    WeightPartRow{.part = WeightPart::kZero,
                  .hf_suffix = ".weight_zero_point",
                  .trtllm_suffix = ".zero",
                  .extent = Extent::kBlocks,
                  .values = Values::kZeros,
                  .present = HasZeroPoints},
    WeightPartRow{.part = WeightPart::kInputFactors,
                  .hf_suffix = ".pre_quant_scale",
                  .trtllm_suffix = ".prequant_scaling_factor",
                  .extent = Extent::kColumns,
                  .values = Values::kFactors,
                  .present = HasInputFactors},
    WeightPartRow{.part = WeightPart::kInputOrder,
                  .hf_suffix = ".input_order",
                  .trtllm_suffix = ".input_order",
                  .extent = Extent::kColumns,
                  .values = Values::kIndices,
                  .present = HasInputOrder},
    WeightPartRow{.part = WeightPart::kInputScale,
                  .hf_suffix = ".input_scale",
                  .trtllm_suffix = ".activation_scaling_factor",
                  .extent = Extent::kOne,
                  .values = Values::kFactors,
                  .present = InputsAreStatic},
    WeightPartRow{.part = WeightPart::kCacheScale,
                  .trtllm_name = "attention.kv_cache_scaling_factor",
                  .extent = Extent::kHeads,
                  .values = Values::kFactors,
                  .present = Cached},
};

// RowOf indexes by part.
constexpr bool IsInOrder() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].part != static_cast<WeightPart>(i)) return false;
  }
  return kRows.size() == static_cast<size_t>(WeightPart::kCount);
}
static_assert(IsInOrder());

}  // namespace

std::span<const WeightPartRow> WeightPartRows() { return kRows; }

const WeightPartRow& RowOf(WeightPart part) { return kRows[static_cast<size_t>(part)]; }

}  // namespace tandem
