#include "quantize/layer_observer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tensor/convert.h"

namespace tandem {
namespace {

int64_t ExpertSlots(const ModelSpec& spec, int64_t layer, int64_t rows) {
  return rows * spec.layer(layer).moe.routing.experts_per_token;
}

// In which rows are kept, so that there are at most kKeptRows of them.
int64_t Spacing(int64_t rows) { return std::max<int64_t>((rows + kKeptRows - 1) / kKeptRows, 1); }

void RaiseTo(std::vector<float>& largest, size_t index, float magnitude) {
  largest[index] = std::max(largest[index], magnitude);
}

}  // namespace

LayerObserver::LayerObserver(const ModelSpec& spec, int64_t layer, const LayerWeights& weights,
                             int64_t num_rows, ops::Backend& backend)
    : backend_(backend), spacing_(Spacing(num_rows)) {
  const auto read_by = [&](WeightRole role) { return InputOf(spec, {role, layer}); };
  products_ = {{&weights.attention.qkv, read_by(WeightRole::kQuery)},
               {&weights.attention.out, read_by(WeightRole::kAttentionOut)},
               {&weights.mlp.gate_up, read_by(WeightRole::kUp)},
               {&weights.mlp.down, read_by(WeightRole::kDown)}};
  before_experts_ = read_by(WeightRole::kExpertUp);
  for (const LayerInput& input : InputsOf(spec, layer)) {
    InputStatistics& seen = statistics_.inputs[input.id];
    seen.largest.resize(static_cast<size_t>(input.columns));
    seen.sum.resize(static_cast<size_t>(input.columns));
  }
  const int64_t experts = spec.layer(layer).moe.num_experts;
  if (experts > 0) expert_spacing_ = Spacing(ExpertSlots(spec, layer, num_rows) / experts);
}

void LayerObserver::SeeProduct(const Tensor& x, const ops::LinearWeight& weight) {
  const auto product = products_.find(&weight);
  if (product != products_.end()) See(product->second, x, batch_row_);
}

void LayerObserver::SeeExperts(int64_t first_row, const Tensor& x, const ops::ExpertChoice& choice,
                               const Tensor& inner) {
  See(before_experts_, x, batch_row_ + first_row);
  std::vector<int32_t> experts(static_cast<size_t>(choice.experts.NumElements()));
  backend_.CopyToHost(experts.data(), choice.experts.data, experts.size() * sizeof(int32_t));
  std::ranges::sort(experts);
  const Tensor rows = OnHost(inner);
  for (int64_t place = 0; place < rows.dim(0); ++place) {
    InputStatistics& seen =
        statistics_.inputs.at({InputGroup::kExpertOut, experts[static_cast<size_t>(place)]});
    const bool keep = seen.num_rows % expert_spacing_ == 0 && seen.kept_rows < kKeptRows;
    Add(rows.RowRange(place, 1), keep, seen);
  }
}

void LayerObserver::SeeCache(const ops::KvGroup& kv) {
  const auto heads = static_cast<size_t>(kv.num_kv_heads);
  const auto dim = static_cast<size_t>(kv.head_dim);
  statistics_.keys.resize(heads);
  statistics_.values.resize(heads * dim);
  const int64_t head = kv.elements_per_head();
  const Tensor all = OnHost(kv.data);
  const Tensor pieces{all.data, all.dtype, {kv.data.NumElements() / head, head}, {}};
  for (int64_t piece = 0; piece < pieces.dim(0); ++piece) {
    const std::vector<float>& values = AsFloats(pieces.RowRange(piece, 1));
    const auto index = static_cast<size_t>(piece % (2 * kv.num_kv_heads));
    for (size_t i = 0; i < values.size(); ++i) {
      const float magnitude = std::abs(values[i]);
      if (index < heads) {
        RaiseTo(statistics_.keys, index, magnitude);
      } else {
        RaiseTo(statistics_.values, (index - heads) * dim + i % dim, magnitude);
      }
    }
  }
}

// Products that are not packed may read the same rows: they are counted once.
void LayerObserver::See(const InputId& id, const Tensor& x, int64_t first_row) {
  InputStatistics& seen = statistics_.inputs.at(id);
  if (seen.num_rows > first_row) return;
  const Tensor rows = OnHost(x);
  for (int64_t row = 0; row < rows.dim(0); ++row) {
    Add(rows.RowRange(row, 1), (first_row + row) % spacing_ == 0, seen);
  }
}

void LayerObserver::Add(const Tensor& row, bool keep, InputStatistics& seen) {
  const std::vector<float>& values = AsFloats(row);
  for (size_t i = 0; i < values.size(); ++i) {
    const float magnitude = std::abs(values[i]);
    RaiseTo(seen.largest, i, magnitude);
    seen.sum[i] += magnitude;
  }
  ++seen.num_rows;
  if (!keep) return;
  seen.rows.insert(seen.rows.end(), values.begin(), values.end());
  ++seen.kept_rows;
}

Tensor LayerObserver::OnHost(const Tensor& x) {
  host_.resize(static_cast<size_t>(x.NumBytes()));
  backend_.CopyToHost(host_.data(), x.data, host_.size());
  return {host_.data(), x.dtype, x.shape, {}};
}

// Valid until the next call.
const std::vector<float>& LayerObserver::AsFloats(const Tensor& row) {
  floats_.resize(static_cast<size_t>(row.dim(1)));
  ConvertElements(row, {floats_.data(), DType::kF32, row.shape, {}});
  return floats_;
}

int64_t StatisticsBytes(const ModelSpec& spec, int64_t num_rows) {
  int64_t most = 0;
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    int64_t bytes = 0, within_experts = 0;
    for (const LayerInput& input : InputsOf(spec, layer)) {
      const int64_t row = input.columns * int64_t{sizeof(float)};
      (input.id.group == InputGroup::kExpertOut ? within_experts : bytes) +=
          row * std::min(kKeptRows, num_rows);
    }
    const int64_t slots = ExpertSlots(spec, layer, num_rows);
    const int64_t slot = spec.layer(layer).moe.expert.intermediate_size * int64_t{sizeof(float)};
    most = std::max(most, bytes + std::min(within_experts, slots * slot));
  }
  return most;
}

}  // namespace tandem
