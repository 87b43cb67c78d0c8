#include "model/rank_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/backend.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// Of the part `spec`, in the whole model; any where the part has none.
int64_t FirstLayerOf(const ModelSpec& whole, const Sharding& sharding, const ModelSpec& spec) {
  return spec.place.has_layers() ? FirstLayer(whole, sharding, spec.place.stage) : 0;
}

}  // namespace

RankSource::RankSource(WeightSource& whole, ModelSpec spec)
    : whole_(whole),
      spec_(std::move(spec)),
      sharding_(ShardingOf(spec_.place)),
      first_layer_(FirstLayerOf(whole_.spec(), sharding_, spec_)) {}

RankSource::RankSource(std::unique_ptr<WeightSource> all_layers, ModelSpec spec)
    : owned_(std::move(all_layers)),
      whole_(*owned_),
      spec_(std::move(spec)),
      sharding_{.tp_size = 1, .pp_size = spec_.place.stages},
      first_layer_(FirstLayerOf(whole_.spec(), sharding_, spec_)) {}

Result<Tensor> RankSource::Get(const WeightId& part_id) {
  const ModelSpec& whole_spec = whole_.spec();
  WeightId id = part_id;
  const bool is_whole_expert = RowOf(id.role).per_expert && sharding_.whole_experts;
  if (is_whole_expert) id.expert += spec_.layer(id.layer).moe.routing.first;
  if (RowOf(id.role).per_layer) id.layer += first_layer_;
  const auto kept_as = [&](WeightRole role) {
    return OrderedPartOf(whole_spec, sharding_, role, id.layer);
  };
  if (id.part == WeightPart::kWeight && kept_as(id.role) == OrderedPart::kWidened) {
    return WidenedColumns(id);
  }
  TANDEM_ASSIGN_OR_RETURN(const Tensor whole, whole_.Get(id));
  if (sharding_.tp_size == 1) return whole;
  const Split split = SplitOf(whole_spec, sharding_, id);
  const bool adds_nothing =
      id.part == WeightPart::kBias && IsSummed(id) && spec_.place.rank > 0 && !is_whole_expert;
  if (split == Split::kNone && !adds_nothing) return whole;
  const Shape shape = PartShape(whole_spec, sharding_, id);
  const int64_t begin = PartBegin(whole_spec, sharding_, id, spec_.place.rank);
  const std::optional<WeightRole> taker = TakerOfNeurons(id.role);
  if (split == Split::kRows && taker && kept_as(*taker) == OrderedPart::kNeurons) {
    return NeuronRows(id, *taker, whole);
  }
  if (split == Split::kRows && begin + shape[0] <= whole.dim(0)) {
    return whole.RowRange(begin, shape[0]);
  }
  TANDEM_ASSIGN_OR_RETURN(const Tensor part, Copy(whole.dtype, shape));
  if (split == Split::kCols) {
    CopyColumns(whole, begin, part, 0, part.dim(1));
  } else if (split == Split::kRows && begin < whole.dim(0)) {
    const Tensor rows = whole.RowRange(begin, whole.dim(0) - begin);
    std::memcpy(part.data, rows.data, static_cast<size_t>(rows.NumBytes()));
  }
  return part;
}

Result<Tensor> RankSource::Copy(DType dtype, const Shape& shape) {
  Buffer& copy = copies_.emplace_back(
      Buffer::OnHost(static_cast<size_t>(shape.NumElements()) * SizeOf(dtype)));
  if (copy.data() == nullptr) return ResourceExhausted("no memory for a rank's part of a weight");
  return copy.View(dtype, shape);
}

// The rank's columns of a weight in act-order, in the order of its inputs.
Result<Tensor> RankSource::WidenedColumns(const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(const ops::LinearPart whole,
                          ReadPart(whole_, id.role, id.layer, id.expert));
  const int64_t cols = whole.cols() / sharding_.tp_size;
  const int64_t begin = spec_.place.rank * cols;
  TANDEM_ASSIGN_OR_RETURN(const Tensor part, Copy(spec_.dtype, {whole.rows(), cols}));
  std::vector<float> row(static_cast<size_t>(whole.cols()));
  for (int64_t r = 0; r < whole.rows(); ++r) {
    ops::WidenRow(whole, r, row.data());
    const Tensor columns{row.data() + begin, DType::kF32, {1, cols}, {}};
    ConvertElements(columns, part.RowRange(r, 1));
  }
  return part;
}

// The rows of the neurons that the rank's columns of `taker` multiply, in their order.
Result<Tensor> RankSource::NeuronRows(const WeightId& id, WeightRole taker, const Tensor& whole) {
  const WeightId order_id{taker, id.layer, WeightPart::kInputOrder, id.expert};
  TANDEM_ASSIGN_OR_RETURN(const Tensor order, whole_.Get(order_id));
  TANDEM_ASSIGN_OR_RETURN(const Tensor part,
                          Copy(whole.dtype, PartShape(whole_.spec(), sharding_, id)));
  const int64_t begin = PartBegin(whole_.spec(), sharding_, id, spec_.place.rank);
  for (int64_t r = 0; r < part.dim(0); ++r) {
    const Tensor row = whole.RowRange(order.As<int32_t>()[begin + r], 1);
    std::memcpy(part.RowRange(r, 1).data, row.data, static_cast<size_t>(row.NumBytes()));
  }
  return part;
}

void RankSource::Release() {
  copies_.clear();
  whole_.Release();
}

}  // namespace tandem
