#include "comm/host_parts.h"

#include <algorithm>
#include <array>

#include "tensor/convert.h"

namespace tandem {
namespace {

using Floats = std::array<float, kSumPiece>;

// Elements begin .. begin + count, as a vector.
Tensor Piece(const Tensor& tensor, int64_t begin, int64_t count) {
  std::byte* const data =
      static_cast<std::byte*>(tensor.data) + begin * static_cast<int64_t>(SizeOf(tensor.dtype));
  return {data, tensor.dtype, {count}, tensor.device};
}

}  // namespace

void AddUp(std::span<const Tensor> parts, int64_t begin, int64_t count,
           std::span<const Tensor> sums) {
  Floats sum, next;
  const auto floats = [count](Floats& values) {
    return Tensor{values.data(), DType::kF32, {count}, {}};
  };
  ConvertElements(Piece(parts.front(), begin, count), floats(sum));
  for (const Tensor& part : parts.subspan(1)) {
    ConvertElements(Piece(part, begin, count), floats(next));
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) sum[i] += next[i];
  }
  for (const Tensor& to : sums) ConvertElements(floats(sum), Piece(to, begin, count));
}

void PutColumns(const Tensor& part, int64_t begin, const Tensor& all) {
  const int64_t count = std::min(part.dim(1), all.dim(1) - begin);
  if (count > 0) CopyColumns(part, 0, all, begin, count);
}

}  // namespace tandem
