#include "checkpoint/layouts/unpack.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/stored/stored_tensor.h"

namespace tandem {

WordPacking PackingOf(const QuantScheme& scheme) {
  return {.bits = scheme.elements_per_byte() == 2 ? 4 : 8};
}

Status CheckFillsWords(const StoredMatrix& matrix, std::string_view suffix, const char* what,
                       int64_t count, const WordPacking& packing) {
  if (count % packing.per_word() == 0) return {};
  return InvalidArgument(fmt::format(
      "{}: its words hold {} numbers each, but the weight has {} {}, which is not a multiple",
      matrix.PlaceOf(suffix), packing.per_word(), count, what));
}

Shape ScaleShape(const QuantScheme& scheme, int64_t rows, int64_t columns) {
  if (scheme.block_rows == 1 && scheme.block_columns == 0) return {rows};
  return {scheme.row_blocks(rows), scheme.column_blocks(columns)};
}

// Squares of 16 words: their lines of cache are read whole and written whole.
void TransposeWords(const Tensor& stored, uint32_t flipped, const Tensor& out) {
  constexpr int64_t kSide = 16;
  const int64_t columns = stored.dim(0);
  const int64_t rows = stored.dim(1);
  std::array<std::array<uint32_t, kSide>, kSide> square;
  auto* to = static_cast<std::byte*>(out.data);
  for (int64_t column = 0; column < columns; column += kSide) {
    const auto width = static_cast<size_t>(std::min(kSide, columns - column));
    for (int64_t row = 0; row < rows; row += kSide) {
      const auto height = static_cast<size_t>(std::min(kSide, rows - row));
      for (size_t i = 0; i < width; ++i) {
        for (size_t j = 0; j < height; ++j) {
          const int64_t at = (column + static_cast<int64_t>(i)) * rows + row;
          square[j][i] = LoadWord(stored, at + static_cast<int64_t>(j)) ^ flipped;
        }
      }
      for (size_t j = 0; j < height; ++j) {
        const int64_t at = (row + static_cast<int64_t>(j)) * columns + column;
        std::memcpy(to + at * int64_t{sizeof(uint32_t)}, square[j].data(),
                    width * sizeof(uint32_t));
      }
    }
  }
}

void TransposeNibbles(NibbleSquares& words) {
  const auto swap = [&words](size_t first, size_t second, uint32_t mask) {
    const size_t shift = 4 * (second - first);
    for (size_t i = 0; i < words[0].size(); ++i) {
      const uint32_t changed = ((words[first][i] >> shift) ^ words[second][i]) & mask;
      words[second][i] ^= changed;
      words[first][i] ^= changed << shift;
    }
  };
  for (size_t i = 0; i < 4; ++i) swap(i, i + 4, 0x0000ffffu);
  for (size_t i = 0; i < 4; ++i) swap(i / 2 * 4 + i % 2, i / 2 * 4 + i % 2 + 2, 0x00ff00ffu);
  for (size_t i = 0; i < 4; ++i) swap(2 * i, 2 * i + 1, 0x0f0f0f0fu);
}

Status CheckInputFactors(const StoredMatrix& matrix, QuantScheme& scheme) {
  scheme.input_factors = matrix.Find(kInputFactorsSuffix) != nullptr;
  if (!scheme.input_factors) return {};
  TANDEM_ASSIGN_OR_RETURN(const Tensor factors,
                          matrix.Get(kInputFactorsSuffix, DType::kF32, {matrix.columns()}));
  return CheckScaleValues(factors, matrix.PlaceOf(kInputFactorsSuffix));
}

Status CheckInputScale(const StoredMatrix& matrix, const QuantScheme& scheme) {
  if (scheme.inputs != QuantScheme::Inputs::kStatic) return {};
  return matrix.GetScales(kInputScaleSuffix, {1}).status();
}

Result<std::vector<int32_t>> SortColumns(const Tensor& groups, const QuantScheme& scheme,
                                         const std::string& where) {
  const int64_t columns = groups.NumElements();
  const int64_t width = scheme.block_columns == 0 ? columns : scheme.block_columns;
  // The next column of each group.
  std::vector<int64_t> next;
  for (int64_t group = 0; group < scheme.column_blocks(columns); ++group) {
    next.push_back(group * width);
  }
  std::vector<int32_t> order(static_cast<size_t>(columns));
  bool sorted = true;
  for (int64_t column = 0; column < columns; ++column) {
    const auto group = static_cast<int32_t>(LoadWord(groups, column));
    const bool known = group >= 0 && group < static_cast<int32_t>(next.size());
    if (!known) {
      return InvalidArgument(fmt::format("{}: puts column {} into group {}; there are {} groups",
                                         where, column, group, next.size()));
    }
    int64_t& to = next[static_cast<size_t>(group)];
    if (to == std::min((group + 1) * width, columns)) {
      return InvalidArgument(fmt::format("{}: group {} has more than its {} columns", where, group,
                                         to - group * width));
    }
    sorted = sorted && to == column;
    order[static_cast<size_t>(to++)] = static_cast<int32_t>(column);
  }
  if (sorted) order.clear();
  return order;
}

void ReorderColumns(const Tensor& elements, int64_t columns, const std::vector<int32_t>& order) {
  const int64_t row_bytes = elements.dim(1);
  const bool pairs = row_bytes * 2 == columns;
  std::vector<uint8_t> unsorted(static_cast<size_t>(row_bytes));
  for (int64_t row = 0; row < elements.dim(0); ++row) {
    auto* to = static_cast<uint8_t*>(elements.data) + row * row_bytes;
    std::copy_n(to, row_bytes, unsorted.begin());
    for (int64_t column = 0; column < columns; ++column) {
      const auto from = static_cast<size_t>(order[static_cast<size_t>(column)]);
      if (!pairs) {
        to[column] = unsorted[from];
        continue;
      }
      const int element = (unsorted[from / 2] >> (from % 2 * 4)) & 15;
      const int other = column % 2 == 0 ? 0 : to[column / 2];
      to[column / 2] = static_cast<uint8_t>(other | element << (column % 2 * 4));
    }
  }
}

Result<Tensor> OrderTensor(const std::vector<int32_t>& order, ScratchBuffers& scratch) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor out,
                          scratch.Allocate(DType::kI32, {static_cast<int64_t>(order.size())}));
  std::ranges::copy(order, out.As<int32_t>());
  return out;
}

}  // namespace tandem
