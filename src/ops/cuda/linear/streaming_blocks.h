// Chooses the blocks of products with few tokens (linear_streaming.cu). Pure arithmetic,
// so that its choices are tested without a GPU.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace tandem::ops::cuda {

// A block takes `rows` rows of the weight, and `per_sm` of them run on an SM of sm_90 at a time.
struct StreamingBlocks {
  int rows;
  int per_sm;
  friend constexpr bool operator==(const StreamingBlocks&, const StreamingBlocks&) = default;
};

// The shared memory that such a block takes at most. One that has an SM to itself also takes at
// least so much that no second one fits beside it, but one of those that share an SM does.
constexpr int StreamingBlockBytes(int per_sm) {
  return per_sm == 1 ? 128 << 10 : (192 << 10) / per_sm;
}
constexpr int kLeastBytesAlone = 114 << 10;

// A product and the GPU it runs on.
struct StreamingProduct {
  int64_t rows;  // of the weight
  int64_t cols;
  int64_t tokens;
  int num_sms;
  int shared_bytes;  // that a block can take

  constexpr int64_t Blocks(int block_rows) const { return (rows + block_rows - 1) / block_rows; }
  constexpr bool CanBeAlone() const { return shared_bytes >= StreamingBlockBytes(1); }
  // The mean load of the SMs, as a part of the busiest one's, if they take blocks in turn.
  constexpr double Balance(int block_rows) const {
    const int64_t turns = (Blocks(block_rows) + num_sms - 1) / num_sms;
    return static_cast<double>(Blocks(block_rows)) / static_cast<double>(turns * num_sms);
  }
};

// Of weights that lie row by row, of 8 or 16 bits: {16 or 32 or 80, 1} or {16 or 32, 2}. Where
// there are no more blocks than SMs, each has one to itself: two that meet on one take twice as
// long, and as the blocks of the kernel before end in any order, some always did (H200, `down` of
// an 8B model in fp8: 18.8 us at 1 token and 23.5 at 16, instead of 14.8 and 16.2). Long products
// in two turns of blocks gain 2 % likewise. Blocks of 80 rows are for layers that they divide into
// nearly as many as there are SMs, where those of 32 leave more of them idle (on 132 SMs some
// 10,000 rows; qkv of a 70B model: 11 to 16 % faster). All others take blocks of 32; those of 64
// read the activations half as often, but keep fewer steps in flight (gate and up: up to 7 %
// slower). Columns are not divided between blocks: that was no faster either.
constexpr StreamingBlocks RowwiseStreamingBlocks(const StreamingProduct& product) {
  constexpr int64_t kLongCols = 16384;
  if (!product.CanBeAlone()) return {2 * product.Blocks(32) <= product.num_sms ? 16 : 32, 2};
  for (const int rows : {16, 32}) {
    if (product.Blocks(rows) <= product.num_sms) return {rows, 1};
  }
  if (product.Blocks(32) <= 2 * int64_t{product.num_sms} && product.cols >= kLongCols) {
    return {32, 1};
  }
  constexpr double kNearlyAll = 0.9;
  if (product.Blocks(80) <= product.num_sms && product.Balance(80) >= kNearlyAll &&
      product.Balance(80) > product.Balance(32)) {
    return {80, 1};
  }
  return {32, 2};
}

// Which blocks there is no kernel for with weights of 4 bits. pairs: none of 16 rows, because both
// rows of a pair are in tiles of their own. short_groups, of 32 weights, which are rare: only those
// of 32 rows.
struct Int4Limits {
  bool pairs = false;
  bool short_groups = false;
};

// Of weights of 4 bits: {16 or 32, 1}, {32 or 64, 2}, and for more than 8 tokens also {64, 1}. Half
// the bytes take as many instructions, so that reading the activations less often counts, too.
// Where a block has an SM to itself, `down` of an 8B model takes 10.6 us at 1 token and 13.3 at 16,
// with two on some SMs 16.7 and 20.8.
constexpr StreamingBlocks Int4StreamingBlocks(const StreamingProduct& product,
                                              const Int4Limits& limits) {
  if (product.CanBeAlone()) {
    const bool takes_16 = !limits.pairs && !limits.short_groups;
    if (takes_16 && product.Blocks(16) <= product.num_sms) return {16, 1};
    if (product.Blocks(32) <= product.num_sms) return {32, 1};
  }
  if (limits.short_groups) return {32, 2};
  if (product.CanBeAlone() && product.tokens > 8 && product.Blocks(64) <= product.num_sms) {
    return {64, 1};
  }
  return {product.Blocks(64) >= 2 * int64_t{product.num_sms} ? 64 : 32, 2};
}

// Products of the experts of a plan with up to 8 tokens each.
struct StreamingExperts {
  int64_t rows;     // of an expert's weight
  int64_t segment;  // columns of a warp
  int64_t most_items;
  int num_sms;
  int shared_bytes;  // that a block can take
};

// The shared memory that a block takes at most; two run on an SM. Blocks of 32 rows fit beside
// their table of parts where a block can take 99 KB.
constexpr int StreamingExpertBytes(int rows) { return rows == 64 ? 108 << 10 : 97000; }

// The number of weight rows that a block takes at a time: 32 or 64. Twice the rows share the
// activations and the sums of a part, which counts where a part has few columns (fp8, H200: 7 % of
// `down` of 768 columns, -8 % of 14,336) or few bytes (4 bits: 4 to 22 %).
constexpr int StreamingExpertRows(const StreamingExperts& experts, bool int4) {
  if (experts.shared_bytes < StreamingExpertBytes(64)) return 32;
  const int64_t blocks = (experts.rows + 63) / 64 * experts.most_items;
  if (blocks < experts.num_sms) return 32;
  return int4 || experts.segment <= 128 ? 64 : 32;
}

}  // namespace tandem::ops::cuda
