// RowBucket: numbers of rows, or of sequences, by powers of two. What is learnt about passes and
// rounds is kept for each of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tandem {

// 1, 2, 3 to 4, 5 to 8 and so on. Larger numbers share the last bucket.
inline constexpr size_t kNumRowBuckets = 14;

inline size_t RowBucket(int32_t rows) {
  const auto bucket =
      static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(rows, 1) - 1)));
  return std::min(bucket, kNumRowBuckets - 1);
}

}  // namespace tandem
