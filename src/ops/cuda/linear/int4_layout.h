// How a weight of 4 bits lies on the GPU (Int4 in linear_fragments.cuh): the numbers of its tiles.
#pragma once

#include <cstdint>

#include "tensor/quant_scheme.h"

namespace tandem::ops::cuda {

constexpr int64_t kInt4TileRows = 16;
constexpr int64_t kInt4UnitCols = 64;

// The scales that there are kernels for: of a row, or of 32, 64, 128, ... columns.
constexpr bool HasInt4Groups(const QuantScheme& scheme) {
  const int64_t columns = scheme.block_columns;
  return scheme.block_rows == 1 &&
         (columns == 0 || (columns >= 32 && (columns & (columns - 1)) == 0));
}

struct Int4Layout {
  constexpr Int4Layout(int64_t rows, int64_t columns, const QuantScheme& scheme)
      : cols(columns),
        block_columns(scheme.block_columns),
        tiles((rows + kInt4TileRows - 1) / kInt4TileRows),
        units((columns + kInt4UnitCols - 1) / kInt4UnitCols) {
    if (block_columns == 0) {
      group_shift = 30;
    } else {
      while ((kInt4UnitCols << group_shift) < block_columns) ++group_shift;
    }
    groups = ((units - 1) >> group_shift) + 1;
    if (block_columns == kInt4UnitCols / 2) groups *= 2;
  }

  int64_t cols;
  int64_t block_columns;
  int64_t tiles;
  int64_t units;
  // The group of unit u is u >> group_shift, and where groups have 32 columns 2 u and 2 u + 1.
  int group_shift = 0;
  int64_t groups = 1;  // of a row

  constexpr int64_t weight_bytes() const {
    return tiles * units * kInt4TileRows * kInt4UnitCols / 2;
  }
  constexpr int64_t scale_bytes() const { return tiles * groups * kInt4TileRows * 4; }
  constexpr int64_t zero_bytes() const { return tiles * groups * kInt4TileRows * 2; }
};

}  // namespace tandem::ops::cuda
