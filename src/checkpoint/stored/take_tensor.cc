#include "checkpoint/stored/take_tensor.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tandem {
namespace {

// A column of `from` becomes a row of `to`.
void CopyColumn(const Tensor& from, int64_t column, const Tensor& to) {
  const auto element = static_cast<int64_t>(SizeOf(from.dtype));
  const auto* source = static_cast<const std::byte*>(from.data) + column * element;
  auto* target = static_cast<std::byte*>(to.data);
  for (int64_t i = 0; i < from.dim(0); ++i) {
    std::memcpy(target, source, static_cast<size_t>(element));
    target += element;
    source += from.dim(1) * element;
  }
}

}  // namespace

Tensor ExpertOf(const Tensor& stored, int64_t expert) {
  std::vector<int64_t> dims;
  for (int i = 1; i < stored.shape.rank(); ++i) dims.push_back(stored.dim(i));
  Tensor one = stored;
  one.shape = Shape::Of(dims);
  one.data = static_cast<std::byte*>(stored.data) + expert * one.NumBytes();
  return one;
}

Shape StoredShape(const TensorSource& source, const Shape& expected, const Shape& found) {
  const int64_t rows = source.rows.is_identity() ? expected[0] : source.rows.of;
  Shape one = {rows};
  if (expected.rank() == 2) {
    one = source.transposed ? Shape{expected[1], rows} : Shape{rows, expected[1]};
  }
  if (!source.expert) return one;
  const int64_t experts = std::max(found.rank() > 0 ? found[0] : 0, *source.expert + 1);
  return one.rank() == 1 ? Shape{experts, rows} : Shape{experts, one[0], one[1]};
}

Result<Tensor> TakeTensor(const Tensor& stored, const TensorSource& source, const Shape& expected,
                          ScratchBuffers& scratch) {
  const Tensor whole = source.expert ? ExpertOf(stored, *source.expert) : stored;
  const bool transposed = source.transposed && expected.rank() == 2;
  const RowMap& map = source.rows;
  const int64_t rows = expected[0];
  const bool together = map.is_identity() || rows <= map.block || map.block == map.stride;
  if (together && !transposed) {
    return map.is_identity() ? whole : whole.RowRange(map.first, rows);
  }
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(stored.dtype, expected));
  for (int64_t row = 0; row < rows; ++row) {
    const Tensor to = out.RowRange(row, 1);
    if (transposed) {
      CopyColumn(whole, map.StoredRow(row), to);
    } else {
      const Tensor from = whole.RowRange(map.StoredRow(row), 1);
      std::memcpy(to.data, from.data, static_cast<size_t>(from.NumBytes()));
    }
  }
  return out;
}

Result<RowMap> BlockRows(const RowMap& rows, int64_t block_rows, const std::string& place) {
  if (rows.is_identity() || block_rows == 1) return rows;
  const bool cut =
      rows.first % block_rows != 0 || rows.block % block_rows != 0 || rows.stride % block_rows != 0;
  if (cut) {
    return Unimplemented(place +
                         ": is one of several weights in a tensor, and does not begin and end with "
                         "the blocks of " +
                         std::to_string(block_rows) + " rows that share a scale");
  }
  return RowMap{rows.first / block_rows, rows.block / block_rows, rows.stride / block_rows,
                (rows.of + block_rows - 1) / block_rows};
}

}  // namespace tandem
