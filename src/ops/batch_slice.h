// How a slice of a batch is described: the entries of its arrays, which every backend's
// Ops::LaySlice fills with the same code, and its BatchView. Pure functions; any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/host_device.h"
#include "ops/ops.h"

namespace tandem::ops {

// Where the batch's row `row` is in the slice; 0 before it and num_rows after it.
TANDEM_HOST_DEVICE inline int32_t RowInSlice(const BatchSlice& slice, int32_t row) {
  const int32_t in_slice = row - slice.first_row;
  if (in_slice < 0) return 0;
  return in_slice < slice.num_rows ? in_slice : slice.num_rows;
}

// Writes entry `seq`, 0 .. batch.num_seqs, of query_start, and of context_len but for the last.
TANDEM_HOST_DEVICE inline void FillSlice(const BatchView& batch, const BatchSlice& slice,
                                         int32_t seq) {
  slice.query_start[seq] = RowInSlice(slice, batch.query_start[seq]);
  if (seq == batch.num_seqs) return;
  // What comes after the slice is not in the cache yet.
  const int32_t slice_end = slice.first_row + slice.num_rows;
  const int32_t begin = batch.query_start[seq], end = batch.query_start[seq + 1];
  const int32_t later = end - (begin > slice_end ? begin : slice_end);
  slice.context_len[seq] = batch.context_len[seq] - (later > 0 ? later : 0);
}

// The slice as a batch of which no logits are wanted; valid as long as the arrays of both. Tokens
// that see later ones (prefix_len) cannot be run before those.
inline BatchView SliceOf(const BatchView& batch, const BatchSlice& slice) {
  TANDEM_CHECK(batch.prefix_len == nullptr, "a slice of prompts with a prefix mask");
  const int32_t rows = slice.num_rows;
  BatchView view = batch;
  view.num_rows = rows;
  view.num_logits = 0;
  view.logits_rows = nullptr;
  if (batch.max_query_len > 0) view.max_query_len = std::min(batch.max_query_len, rows);
  view.chunks.num_rows = std::min(batch.chunks.num_rows, rows);
  // A cut may leave any number of a chunk's rows, unless all rows are those of one.
  view.chunks.min_len = batch.chunks.min_len == batch.num_rows ? rows : 1;
  view.query_start = slice.query_start;
  view.context_len = slice.context_len;
  for (const int32_t** by_row :
       {&view.tokens, &view.positions, &view.row_seq, &view.turns, &view.second_positions}) {
    if (*by_row != nullptr) *by_row += slice.first_row;
  }
  return view;
}

}  // namespace tandem::ops
