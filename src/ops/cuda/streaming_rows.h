// Chooses the blocks of products with few tokens (linear_streaming.cu). Pure arithmetic, so that
// its choices are tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::ops::cuda {

// How many blocks of this many weight rows (16, 32 or 64) fit on an SM by their registers and
// shared memory, and the bytes of weights that each keeps on the way.
constexpr int StreamingBlocksPerSm(int rows) { return rows == 16 ? 4 : 2; }
constexpr int StreamingBlockBytes(int rows) { return (192 << 10) / StreamingBlocksPerSm(rows); }

struct StreamingProduct {
  int64_t rows;  // of the weight
  int64_t cols;
  int64_t weight_bytes;  // of an element
  int64_t tokens;
  int num_sms;
};

// The bytes that memory could deliver while the product runs in blocks of `rows` rows. Columns are
// not divided between blocks: a block has all eight segments of them on the way already.
constexpr double StreamingCost(const StreamingProduct& product, int rows) {
  // The latency of memory under load times its bandwidth, per SM.
  constexpr double kBytesUnderWay = 48 << 10;
  // The bandwidth of L2, in units of that of memory: on an H200 products whose activations are half
  // as many bytes as a block's weights, or as many, read 5.8 to 6.1 TB/s from L2.
  constexpr double kCacheSpeed = 1.36;
  // That of one SM, in units of its share of memory's: two thirds of 64 bytes a clock, assumed.
  constexpr double kSmSpeed = 2.3;
  const int64_t blocks = (product.rows + rows - 1) / rows;
  const auto block_bytes = static_cast<double>(rows * product.cols * product.weight_bytes);
  // Too few blocks in the last wave do not use the bandwidth.
  const int64_t last_wave = blocks % (StreamingBlocksPerSm(rows) * int64_t{product.num_sms});
  const double needed =
      kBytesUnderWay * product.num_sms / std::min<double>(block_bytes, StreamingBlockBytes(rows));
  const double last = last_wave == 0 ? 0.0 : std::max(static_cast<double>(last_wave), needed);
  // Every block reads all activations from L2.
  const double cache_bytes = block_bytes + static_cast<double>(2 * product.tokens * product.cols);
  const double busy = static_cast<double>(std::min<int64_t>(blocks, product.num_sms)) /
                      static_cast<double>(product.num_sms);
  return (static_cast<double>(blocks - last_wave) + last) *
         std::max({block_bytes, cache_bytes / kCacheSpeed, cache_bytes / (kSmSpeed * busy)});
}

// The number of weight rows of a block: 16, 32 or 64. A larger block must save 5 %, because more
// warps hide latencies better and more, smaller blocks end closer together.
constexpr int StreamingRows(const StreamingProduct& product) {
  int best = 16;
  for (const int rows : {32, 64}) {
    if (StreamingCost(product, rows) < 0.95 * StreamingCost(product, best)) best = rows;
  }
  return best;
}

}  // namespace tandem::ops::cuda
