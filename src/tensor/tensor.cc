#include "tensor/tensor.h"

namespace tandem {

Shape Shape::Of(std::span<const int64_t> dims) {
  TANDEM_CHECK(dims.size() <= kMaxRank, "a tensor has at most four dimensions");
  Shape shape;
  for (const int64_t dim : dims) shape.dims_[shape.rank_++] = dim;
  return shape;
}

std::string Shape::ToString() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims_[i]);
  }
  return text + "]";
}

Tensor Tensor::Rows(int64_t rows) const { return RowRange(0, rows); }

Tensor Tensor::RowRange(int64_t begin, int64_t rows) const {
  TANDEM_CHECK(shape.rank() >= 1 && begin >= 0 && rows >= 0 && begin + rows <= shape[0],
               "the rows are not all there");
  std::array<int64_t, Shape::kMaxRank> dims{};
  int64_t row_elements = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    dims[i] = i == 0 ? rows : shape[i];
    if (i > 0) row_elements *= shape[i];
  }
  const int64_t offset_bytes = begin * row_elements * static_cast<int64_t>(SizeOf(dtype));
  return {static_cast<std::byte*>(data) + offset_bytes, dtype,
          Shape::Of({dims.data(), static_cast<size_t>(shape.rank())}), device};
}

}  // namespace tandem
