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

RankTensor RankTensorOf(const ModelSpec& spec, const Sharding& sharding, const FusedTensor& fused) {
  return {fused, SchemeOf(spec, fused.roles.front(), fused.layer),
          FusedShape(spec, sharding, fused), FusedDType(spec, fused)};
}

ShardedSource::ShardedSource(ModelSpec spec, Sharding sharding,
                             std::vector<std::unique_ptr<RankFile>> files)
    : spec_(std::move(spec)), sharding_(sharding), files_(std::move(files)) {}

Result<std::unique_ptr<ShardedSource>> ShardedSource::Create(
    ModelSpec spec, Sharding sharding, std::vector<std::unique_ptr<RankFile>> files) {
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  TANDEM_RETURN_IF_ERROR(CheckSharding(spec, sharding));
  TANDEM_CHECK(files.size() == static_cast<size_t>(sharding.num_files()), "one file per rank");
  std::unique_ptr<ShardedSource> source(
      new ShardedSource(std::move(spec), sharding, std::move(files)));
  for (const FusedTensor& tensor : FusedTensors(source->spec_, sharding)) {
    const RankTensor wanted = RankTensorOf(source->spec_, sharding, tensor);
    for (int64_t rank = 0; rank < sharding.tp_size; ++rank) {
      TANDEM_RETURN_IF_ERROR(source->FileOf(tensor, rank).Check(wanted));
    }
  }
  for (const auto& file : source->files_) TANDEM_RETURN_IF_ERROR(file->CheckOthers());
  return source;
}

RankFile& ShardedSource::FileOf(const FusedTensor& tensor, int64_t rank) const {
  return *files_[static_cast<size_t>(tensor.stage * sharding_.tp_size + rank)];
}

Result<Tensor> ShardedSource::Values(const RankTensor& tensor, RankFile& file) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor values, file.Read(tensor, scratch_));
  const std::string where = file.PlaceOf(tensor.fused.name);
  if (tensor.fused.part == WeightPart::kInputOrder) {
    TANDEM_RETURN_IF_ERROR(CheckInputOrder(values, where));
  }
  if (!IsScale(tensor.fused.part)) return values;
  TANDEM_RETURN_IF_ERROR(CheckScaleValues(values, where));
  return ToFloats(values, tensor.shape, scratch_);
}

Result<Tensor> ShardedSource::Share(const WeightId& id, int64_t rank) {
  const FusedTensor fused = FusedTensorOf(spec_, id, sharding_);
  const RankTensor tensor = RankTensorOf(spec_, sharding_, fused);
  RankFile& file = FileOf(fused, rank);
  if (fused.is_shared()) return Values(tensor, file);
  int64_t begin = 0;
  for (const WeightRole above : fused.roles) {
    const int64_t rows = PartShape(spec_, sharding_, fused.IdOf(above))[0];
    if (above == id.role) {
      if (id.part == WeightPart::kWeight) return file.ReadRows(tensor, begin, rows, scratch_);
      TANDEM_ASSIGN_OR_RETURN(const Tensor values, Values(tensor, file));
      return values.RowRange(begin, rows);
    }
    begin += rows;
  }
  return Internal("a fused tensor without the role it was asked for");
}

Result<Tensor> ShardedSource::Merge(const WeightId& id, Split split) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor whole,
                          scratch_.Allocate(WeightDType(spec_, id), WeightShape(spec_, id)));
  Tensor first;  // of the ranks that repeat the same key-value heads
  int64_t first_rank = -1, first_begin = -1;
  for (int64_t rank = 0; rank < sharding_.tp_size; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor share, Share(id, rank));
    const int64_t begin = PartBegin(spec_, sharding_, id, rank);
    if (begin == first_begin) {
      if (!SameBytes(first, share)) return DifferFrom(id, rank, first_rank);
      continue;
    }
    split == Split::kCols ? PutCols(share, begin, whole) : PutRows(share, begin, whole);
    first = share;
    first_rank = rank;
    first_begin = begin;
  }
  return whole;
}

Status ShardedSource::DifferFrom(const WeightId& id, int64_t rank, int64_t first) const {
  const FusedTensor fused = FusedTensorOf(spec_, id, sharding_);
  return Unimplemented(
      FileOf(fused, rank).PlaceOf(fused.name) + " differs from that of " +
      FileOf(fused, first).path().filename().string() + ": ranks with " +
      (IsScale(id.part) ? "scales" : "values") +
      " of their own for what they repeat are not supported; convert the original model with "
      "`tandem convert`, or for one rank");
}

Result<Tensor> ShardedSource::Common(const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor share, Share(id, /*rank=*/0));
  Tensor common = share;
  for (int64_t rank = 1; rank < sharding_.tp_size; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor copy, Share(id, rank));
    if (id.part == WeightPart::kInputScale) {
      // Larger than an input needs: none is clamped.
      if (*copy.As<float>() > *common.As<float>()) common = copy;
    } else if (!SameBytes(share, copy)) {
      return DifferFrom(id, rank, /*first=*/0);
    }
  }
  return common;
}

Result<Tensor> ShardedSource::Get(const WeightId& id) {
  const WeightId held = StoredId(spec_, id);
  const Split split = SplitOf(spec_, sharding_, held);
  if (sharding_.tp_size > 1 && split != Split::kNone) return Merge(held, split);
  TANDEM_ASSIGN_OR_RETURN(const Tensor share, Common(held));
  // At tp_size 1 the vocabulary cannot be padded, so the part is the whole.
  return AsDType(share, WeightDType(spec_, held), scratch_);
}

Status ShardedSource::Finish() {
  for (const auto& file : files_) TANDEM_RETURN_IF_ERROR(file->Finish());
  return {};
}

}  // namespace tandem
