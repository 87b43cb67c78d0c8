// BatchBuilder: lays ranges of sequences out as the ragged rows of a BatchView. Makes its arrays
// once for the largest batch. Owned and used by the executor's parts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "runtime/cache/kv_cache.h"

namespace tandem {

class BatchBuilder {
 public:
  // A token the model has no embedding of (`vocab` and above: a draft may know fewer than its
  // target) is replaced by token 0.
  BatchBuilder(int32_t max_rows, int32_t max_seqs, int32_t max_logits, int32_t max_blocks,
               int64_t vocab);

  void Clear();
  // The rows of one sequence: `known` and then `drafts`, from position `start` on; the last
  // num_logits of them want logits. Returns the index of the first of those logits.
  int32_t Add(int32_t start, std::span<const int32_t> known, std::span<const int32_t> drafts,
              std::span<const BlockId> blocks, int32_t num_logits);
  bool empty() const { return view_.num_rows == 0; }
  // Valid until the next Clear or Add.
  const ops::BatchView& View() const { return view_; }

 private:
  void AddRow(int32_t token, int32_t position);

  const int64_t vocab_;
  ops::BatchView view_;
  std::vector<int32_t> tokens_, positions_, row_seq_;  // [max_rows]
  std::vector<int32_t> query_start_, context_len_;     // [max_seqs + 1], [max_seqs]
  std::vector<int32_t> block_table_;                   // [max_seqs, max_blocks]
  std::vector<int32_t> logits_rows_;                   // [max_logits]
};

}  // namespace tandem
