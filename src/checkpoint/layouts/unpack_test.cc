#include "checkpoint/layouts/unpack.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem {
namespace {

TEST(Unpack, TransposesWordsOfAnyShape) {
  std::mt19937 random(4);
  for (const auto& [columns, rows] : {std::pair<int64_t, int64_t>{1, 1}, {16, 48}, {37, 50}}) {
    std::vector<uint32_t> stored(static_cast<size_t>(columns * rows));
    for (uint32_t& word : stored) word = static_cast<uint32_t>(random());
    std::vector<uint32_t> out(stored.size());
    TransposeWords({stored.data(), DType::kI32, {columns, rows}, {}}, 0x80u,
                   {out.data(), DType::kU8, {rows, columns * 4}, {}});
    for (int64_t i = 0; i < columns * rows; ++i) {
      const auto from = static_cast<size_t>(i % columns * rows + i / columns);
      ASSERT_EQ(out[static_cast<size_t>(i)], stored[from] ^ 0x80u);
    }
  }
}

TEST(Unpack, TransposesNibblesInEachOfTheSquares) {
  std::mt19937 random(4);
  NibbleSquares words;
  for (auto& row : words) {
    for (uint32_t& word : row) word = static_cast<uint32_t>(random());
  }
  const NibbleSquares stored = words;
  TransposeNibbles(words);
  for (size_t i = 0; i < 8; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      for (size_t square = 0; square < 16; ++square) {
        ASSERT_EQ(words[i][square] >> (4 * j) & 15u, stored[j][square] >> (4 * i) & 15u);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
