// Chooses the blocks of products with few tokens (linear_streaming_quantized.cu). Pure arithmetic,
// so that its choices are tested without a GPU.
#pragma once

#include <cstdint>

namespace tandem::ops::cuda {

// How many blocks of this many weight rows (16, 32 or 64) fit on an SM by their registers and
// shared memory, and the bytes of weights that each keeps on the way.
constexpr int StreamingBlocksPerSm(int rows) { return rows == 16 ? 4 : 2; }
constexpr int StreamingBlockBytes(int rows) { return (192 << 10) / StreamingBlocksPerSm(rows); }

struct StreamingProduct {
  int64_t rows;  // of the weight
  int64_t tokens;
  int num_sms;
};

// The number of weight rows of a block: 16, 32 or 64. On an H200, fp8, from 1 to 16 tokens: blocks
// of 32 rows are the fastest or within 2 %, also where they leave SMs without work, down to half of
// them. Blocks of 64 read the activations half as often, which counts from 5 tokens on (8 % at 8)
// if there are enough blocks for every place; where there are not, they take up to a third longer.
// Columns are not divided between blocks.
constexpr int StreamingRows(const StreamingProduct& product) {
  const auto blocks = [&](int rows) { return (product.rows + rows - 1) / rows; };
  if (2 * blocks(32) < product.num_sms) return 16;
  const int64_t places = int64_t{StreamingBlocksPerSm(64)} * product.num_sms;
  return product.tokens > 4 && blocks(64) >= places ? 64 : 32;
}

// The same for weights of 4 bits: half the bytes take as many instructions, so that reading the
// activations half as often counts from one token on. What counts more is a second block on every
// SM, whose warps work while those of the first wait (up to 8 tokens: 4 to 15 % where blocks of 32
// are about as many as SMs).
constexpr int StreamingInt4Rows(const StreamingProduct& product) {
  const int64_t blocks = (product.rows + 31) / 32;
  if (product.tokens <= 8 && 4 * blocks <= 5 * product.num_sms) return 16;
  return StreamingRows({.rows = product.rows, .tokens = 16, .num_sms = product.num_sms});
}

// Products of the experts of a plan with up to 8 tokens each.
struct StreamingExperts {
  int64_t rows;     // of an expert's weight
  int64_t segment;  // columns of a warp
  int64_t most_items;
  int num_sms;
};

// The number of weight rows that a block takes at a time: 32 or 64. Twice the rows share the
// activations and the sums of a part, which counts where a part has few columns (fp8, H200: 7 % of
// `down` of 768 columns, -8 % of 14,336) or few bytes (4 bits: 4 to 22 %).
constexpr int StreamingExpertRows(const StreamingExperts& experts, bool int4) {
  const int64_t blocks = (experts.rows + 63) / 64 * experts.most_items;
  if (blocks < experts.num_sms) return 32;
  return int4 || experts.segment <= 128 ? 64 : 32;
}

}  // namespace tandem::ops::cuda
