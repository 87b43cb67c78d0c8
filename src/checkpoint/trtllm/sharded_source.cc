#include "checkpoint/trtllm/sharded_source.h"

#include <algorithm>
#include <utility>

#include "checkpoint/stored/stored_tensor.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

void PutRows(const Tensor& part, int64_t begin, const Tensor& whole) {
  const int64_t rows =
      std::min(part.dim(0), whole.dim(0) - begin);  // drops the vocabulary's padding
  if (rows > 0) ConvertElements(part.Rows(rows), whole.RowRange(begin, rows));
}

// One row at a time: a part's columns lie apart in the whole.
void PutCols(const Tensor& part, int64_t begin, const Tensor& whole) {
  const int64_t cols = part.dim(1);
  for (int64_t row = 0; row < part.dim(0); ++row) {
    const Tensor from = part.RowRange(row, 1);
    Tensor to = whole.RowRange(row, 1);
    to.data = static_cast<std::byte*>(to.data) + begin * static_cast<int64_t>(SizeOf(to.dtype));
    to.shape = {1, cols};
    ConvertElements(from, to);
  }
}

}  // namespace

ShardedSource::ShardedSource(ModelSpec spec, Sharding sharding,
                             std::vector<std::unique_ptr<RankFile>> ranks, Int4Pairs pairs)
    : spec_(std::move(spec)), sharding_(sharding), ranks_(std::move(ranks)), pairs_(pairs) {}

Result<std::unique_ptr<ShardedSource>> ShardedSource::Create(
    ModelSpec spec, Sharding sharding, std::vector<std::unique_ptr<RankFile>> ranks,
    Int4Pairs pairs) {
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  TANDEM_RETURN_IF_ERROR(CheckSharding(spec, sharding));
  TANDEM_CHECK(ranks.size() == static_cast<size_t>(sharding.tp_size), "one file per rank");
  std::unique_ptr<ShardedSource> source(
      new ShardedSource(std::move(spec), sharding, std::move(ranks), pairs));
  for (const FusedTensor& tensor : FusedTensors(source->spec_)) {
    for (int64_t rank = 0; rank < sharding.tp_size; ++rank) {
      const auto found = source->Fused(tensor, rank);
      if (!found.ok()) return found.status();
    }
  }
  return source;
}

Result<Tensor> ShardedSource::Fused(const FusedTensor& tensor, int64_t rank) const {
  RankFile& file = *ranks_[static_cast<size_t>(rank)];
  TANDEM_ASSIGN_OR_RETURN(const Tensor found, file.Find(tensor.name));
  TANDEM_RETURN_IF_ERROR(CheckStored(found, tensor.part,
                                     PairedShape(spec_, sharding_, tensor, pairs_),
                                     FusedDType(spec_, tensor), Where(tensor, rank)));
  return found;
}

std::string ShardedSource::Where(const FusedTensor& tensor, int64_t rank) const {
  return ranks_[static_cast<size_t>(rank)]->path().string() + ": tensor \"" + tensor.name + "\"";
}

Result<Tensor> ShardedSource::Share(const WeightId& id, int64_t rank) {
  const FusedTensor tensor = FusedTensorOf(spec_, id);
  TANDEM_ASSIGN_OR_RETURN(Tensor fused, Fused(tensor, rank));
  TANDEM_RETURN_IF_ERROR(ranks_[static_cast<size_t>(rank)]->Verify(tensor.name));
  if (IsScale(id.part)) {
    TANDEM_RETURN_IF_ERROR(CheckScaleValues(fused, Where(tensor, rank)));
    TANDEM_ASSIGN_OR_RETURN(fused,
                            SpreadScales(fused, FusedShape(spec_, sharding_, tensor), scratch_));
  }
  if (id.part == WeightPart::kInputOrder) {
    TANDEM_RETURN_IF_ERROR(CheckInputOrder(fused, Where(tensor, rank)));
  }
  if (tensor.is_shared()) return fused;
  int64_t begin = 0;
  for (const WeightRole above : tensor.roles) {
    const int64_t rows = PartShape(spec_, sharding_, tensor.IdOf(above))[0];
    if (above == id.role && pairs_ == Int4Pairs::kOfTwoRows && HoldsInt4(spec_, tensor)) {
      TANDEM_ASSIGN_OR_RETURN(const Tensor share,
                              scratch_.Allocate(fused.dtype, {rows, fused.dim(1) / 2}));
      UnpairRows(fused, begin, share);
      return share;
    }
    if (above == id.role) return fused.RowRange(begin, rows);
    begin += rows;
  }
  return Internal("a fused tensor without the role it was asked for");
}

Result<Tensor> ShardedSource::Merge(const WeightId& id, Split split) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor whole,
                          scratch_.Allocate(WeightDType(spec_, id), WeightShape(spec_, id)));
  for (int64_t rank = 0; rank < sharding_.tp_size; ++rank) {
    // Repeated key-value heads overwrite their equal copies.
    TANDEM_ASSIGN_OR_RETURN(const Tensor share, Share(id, rank));
    const int64_t begin = PartBegin(spec_, sharding_, id, rank);
    split == Split::kCols ? PutCols(share, begin, whole) : PutRows(share, begin, whole);
  }
  return whole;
}

Result<Tensor> ShardedSource::Get(const WeightId& id) {
  const WeightId held = StoredId(spec_, id);
  const Split split = SplitOf(spec_, sharding_, held);
  if (sharding_.tp_size > 1 && split != Split::kNone) return Merge(held, split);
  TANDEM_ASSIGN_OR_RETURN(const Tensor share, Share(held, /*rank=*/0));
  // At tp_size 1 the vocabulary cannot be padded, so the part is the whole.
  return AsDType(share, WeightDType(spec_, held), scratch_);
}

Status ShardedSource::Finish() {
  for (const auto& rank : ranks_) TANDEM_RETURN_IF_ERROR(rank->Finish());
  return {};
}

}  // namespace tandem
