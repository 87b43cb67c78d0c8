#include "quantize/layer_inputs.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace tandem {
namespace {

constexpr std::string_view kWithoutCalibration =
    "These need no calibration: --qformat int8_wo and int4_wo; `tandem convert` with "
    "--use_weight_only (and --weight_only_precision int4 --per_group) or --use_fp8_rowwise; and "
    "--weights int8, int4 or fp8 of `serve` and `run`, which round while they load";

// Whether an MLP's inner values are divided by what its up rows are divided by.
bool ScalesWithUp(const MlpSpec& mlp) {
  if (!mlp.gated) return mlp.activation == ops::Activation::kRelu;
  return mlp.activation != ops::Activation::kClampedSwiglu;  // which clamps and adds 1
}

// A norm's rows that are read by products alone: not by the residual stream.
bool IsBeforeBlocks(const LayerSpec& layer) {
  return layer.residual != Residual::kPostNorm && layer.residual != Residual::kNormed;
}

bool TakesScales(const ModelSpec& spec, int64_t index, WeightRole role, bool has_plain) {
  const LayerSpec& layer = spec.layer(index);
  switch (role) {
    case WeightRole::kUp:
      return ScalesWithUp(layer.mlp);
    case WeightRole::kExpertUp:
      return ScalesWithUp(layer.moe.expert);
    case WeightRole::kInputNorm:
    case WeightRole::kPostNorm:
      // With an offset not even powers of two are taken over without rounding.
      return IsBeforeBlocks(layer) && !(has_plain && spec.norm.weight_offset != 0.0);
    default:
      return true;
  }
}

LayerInput& InputWith(const InputId& id, std::vector<LayerInput>& inputs) {
  const auto found = std::ranges::find(inputs, id, &LayerInput::id);
  if (found != inputs.end()) return *found;
  inputs.push_back({.id = id, .columns = 0, .products = {}, .plain = {}, .absorber = {}});
  return inputs.back();
}

void AddProduct(const WeightId& id, LayerInput& input) {
  for (std::vector<WeightId>& product : input.products) {
    const WeightId& first = product.front();
    if (RowOf(first.role).pack == RowOf(id.role).pack && first.expert == id.expert) {
      product.push_back(id);
      return;
    }
  }
  input.products.push_back({id});
}

}  // namespace

InputId InputOf(const ModelSpec& spec, const WeightId& id) {
  InputGroup group = RowOf(id.role).input;
  const bool shares_norm = RowOf(id.role).per_layer && group == InputGroup::kMlp &&
                           spec.layer(id.layer).residual == Residual::kParallel;
  if (shares_norm) group = InputGroup::kAttention;
  return {group, group == InputGroup::kExpertOut ? id.expert : 0};
}

std::vector<LayerInput> InputsOf(const ModelSpec& spec, int64_t layer) {
  std::vector<LayerInput> inputs;
  for (const WeightRow& row : WeightRows()) {
    if (row.input == InputGroup::kNone || WeightParts(spec, row.role, layer).empty()) continue;
    for (int64_t expert = 0; expert < NumExpertsOf(spec, row.role, layer); ++expert) {
      const WeightId id{row.role, layer, WeightPart::kWeight, expert};
      LayerInput& input = InputWith(InputOf(spec, id), inputs);
      input.columns = row.columns(spec, layer);
      if (row.quantizable) {
        AddProduct(id, input);
      } else {
        input.plain.push_back(row.role);
      }
    }
  }
  for (LayerInput& input : inputs) {
    const std::optional<WeightRole> before = RowOf(input.products.front().front().role).absorber;
    const bool takes = before && !WeightParts(spec, *before, layer).empty() &&
                       TakesScales(spec, layer, *before, !input.plain.empty());
    if (takes) input.absorber = before;
  }
  return inputs;
}

Status CheckCalibrated(const ModelSpec& spec) {
  for (const WeightId& id : StoredWeights(spec)) {
    const WeightRow& row = RowOf(id.role);
    if (!row.quantizable || row.input != InputGroup::kNone) continue;
    return Unimplemented(spec.architecture + " has the product \"" + std::string(row.hf_name) +
                         "\", which calibration does not support yet. " +
                         std::string(kWithoutCalibration));
  }
  return {};
}

int64_t AbsorberRow(const ModelSpec& spec, InputGroup group, int64_t layer, int64_t column) {
  if (group != InputGroup::kAttentionOut) return column;
  const AttentionSpec& attention = spec.layer(layer).attention;
  const int64_t queries_per_head = attention.num_heads / attention.num_kv_heads;
  const int64_t head = column / attention.head_dim / queries_per_head;
  return head * attention.head_dim + column % attention.head_dim;
}

std::vector<float> AbsorberScales(const ModelSpec& spec, InputGroup group, int64_t layer,
                                  int64_t rows, std::span<const float> scales) {
  std::vector<float> of_rows(static_cast<size_t>(rows), 1.0f);
  for (size_t column = 0; column < scales.size(); ++column) {
    const int64_t row = AbsorberRow(spec, group, layer, static_cast<int64_t>(column));
    of_rows[static_cast<size_t>(row)] = scales[column];
  }
  return of_rows;
}

}  // namespace tandem
