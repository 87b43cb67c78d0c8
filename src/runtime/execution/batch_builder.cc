#include "runtime/execution/batch_builder.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {

BatchBuilder::BatchBuilder(int32_t max_rows, int32_t max_seqs, int32_t max_logits,
                           int32_t max_blocks, int64_t vocab)
    : vocab_(vocab),
      tokens_(static_cast<size_t>(max_rows)),
      positions_(static_cast<size_t>(max_rows)),
      row_seq_(static_cast<size_t>(max_rows)),
      query_start_(static_cast<size_t>(max_seqs) + 1),
      context_len_(static_cast<size_t>(max_seqs)),
      block_table_(static_cast<size_t>(max_seqs) * static_cast<size_t>(max_blocks)),
      logits_rows_(static_cast<size_t>(max_logits)) {
  view_.tokens = tokens_.data();
  view_.positions = positions_.data();
  view_.row_seq = row_seq_.data();
  view_.query_start = query_start_.data();
  view_.context_len = context_len_.data();
  view_.block_table = block_table_.data();
  view_.max_blocks = max_blocks;
  view_.logits_rows = logits_rows_.data();
}

void BatchBuilder::Clear() {
  view_.num_rows = 0;
  view_.num_seqs = 0;
  view_.num_logits = 0;
}

void BatchBuilder::AddRow(int32_t token, int32_t position) {
  const auto row = static_cast<size_t>(view_.num_rows++);
  TANDEM_CHECK(row < tokens_.size(), "more rows than the plan's limit");
  tokens_[row] = token < vocab_ ? token : 0;
  positions_[row] = position;
  row_seq_[row] = view_.num_seqs;
}

int32_t BatchBuilder::Add(int32_t start, std::span<const int32_t> known,
                          std::span<const int32_t> drafts, std::span<const BlockId> blocks,
                          int32_t num_logits) {
  const auto seq = static_cast<size_t>(view_.num_seqs);
  TANDEM_CHECK(seq < context_len_.size(), "more sequences than slots");
  TANDEM_CHECK(view_.num_logits + num_logits <= static_cast<int32_t>(logits_rows_.size()),
               "more logits than the plan's limit");
  query_start_[seq] = view_.num_rows;
  int32_t position = start;
  for (const int32_t token : known) AddRow(token, position++);
  for (const int32_t token : drafts) AddRow(token, position++);
  query_start_[seq + 1] = view_.num_rows;
  context_len_[seq] = position;
  std::copy(blocks.begin(), blocks.end(),
            block_table_.begin() + static_cast<int64_t>(seq) * view_.max_blocks);
  const int32_t first_logits = view_.num_logits;
  for (int32_t row = view_.num_rows - num_logits; row < view_.num_rows; ++row) {
    logits_rows_[static_cast<size_t>(view_.num_logits++)] = row;
  }
  ++view_.num_seqs;
  return first_logits;
}

}  // namespace tandem
