// RowBuffer: scratch memory for one activation, with one row per row of a batch, or for something
// else that has rows. Sized for the largest batch; views of it allocate nothing. Owned by a block
// or the decoder, used by the decoder's thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "model/spec.h"
#include "ops/backend.h"
#include "tensor/buffer.h"

namespace tandem {

class RowBuffer {
 public:
  // Takes no memory yet.
  RowBuffer(int64_t columns, DType dtype) : columns_(columns), dtype_(dtype) {}

  int64_t RowBytes() const { return columns_ * static_cast<int64_t>(SizeOf(dtype_)); }
  Status Allocate(ops::Backend& backend, int64_t max_rows) {
    TANDEM_ASSIGN_OR_RETURN(memory_, backend.Allocate(static_cast<size_t>(max_rows * RowBytes())));
    return {};
  }
  // [rows, columns]; a layer may need fewer columns than the widest one.
  Tensor View(int64_t rows, int64_t columns) const { return memory_.View(dtype_, {rows, columns}); }
  Tensor View(int64_t rows) const { return View(rows, columns_); }
  // Rows first .. first + rows - 1: [rows, columns]
  Tensor ViewFrom(int64_t first, int64_t rows) const {
    return memory_.View(dtype_, {rows, columns_}, static_cast<size_t>(first * RowBytes()));
  }

 private:
  int64_t columns_;
  DType dtype_;
  Buffer memory_;
};

// The number of columns that is enough for every layer: the maximum of `columns(layer)`.
template <typename Columns>
int64_t WidestLayer(const ModelSpec& spec, const Columns& columns) {
  int64_t widest = 0;
  for (const LayerSpec& layer : spec.layers) widest = std::max(widest, columns(layer));
  return widest;
}

}  // namespace tandem
