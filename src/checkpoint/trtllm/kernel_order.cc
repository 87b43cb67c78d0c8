#include "checkpoint/trtllm/kernel_order.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

namespace tandem {
namespace {

constexpr int64_t kTileColumns = 64;

// The column of the matrix that is stored at each place of a group of columns.
constexpr std::array<uint8_t, 16> kColumns8 = {0, 1, 8,  9,  2, 3, 10, 11,
                                               4, 5, 12, 13, 6, 7, 14, 15};
constexpr std::array<uint8_t, 32> kColumns4 = {0,  1,  8,  9,  16, 17, 24, 25, 2,  3,  10,
                                               11, 18, 19, 26, 27, 4,  5,  12, 13, 20, 21,
                                               28, 29, 6,  7,  14, 15, 22, 23, 30, 31};
// The place in a word of each of its elements.
constexpr std::array<uint8_t, 4> kPlaces8 = {0, 2, 1, 3};
constexpr std::array<uint8_t, 8> kPlaces4 = {0, 4, 1, 5, 2, 6, 3, 7};

int64_t PerWord(const KernelMatrix& matrix) { return 32 / matrix.bits; }
// Rows whose tiles follow each other.
int64_t Together(const KernelMatrix& matrix) { return matrix.bits == 4 ? 4 : 2; }
int64_t WordsOfRow(const KernelMatrix& matrix) { return matrix.columns / PerWord(matrix); }

uint32_t WordAt(const KernelMatrix& matrix, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, static_cast<const std::byte*>(matrix.data) + index * 4, sizeof(word));
  return word;
}

// Whether elements whose middle is zero have one peak, there. A flat spread has none, and few
// levels (of ternary weights, say) have several.
bool PeaksInTheMiddle(const BitCounts& counts) {
  const double all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const auto share = [&](size_t eighth) { return static_cast<double>(counts[eighth]) / all; };
  constexpr double kLeastInMiddle = 0.6;  // of a flat spread, a half
  constexpr double kMostAgainst = 0.05;   // of clipped weights, at the ends
  for (size_t i = 0; i < 3; ++i) {
    if (share(i) > share(i + 1) + kMostAgainst) return false;
    if (share(7 - i) > share(6 - i) + kMostAgainst) return false;
  }
  return share(2) + share(3) + share(4) + share(5) >= kLeastInMiddle;
}

// Elements from 0 of a row whose tiles lie between those of its neighbours.
void UnpackInterleaved(const KernelMatrix& matrix, int64_t row, uint8_t* out) {
  const int64_t per_word = PerWord(matrix);
  const int64_t together = Together(matrix);
  const int64_t tile_words = kTileColumns / per_word;
  const int64_t first_word =
      row / together * together * WordsOfRow(matrix) + row % together * tile_words;
  const uint32_t mask = (1u << matrix.bits) - 1;
  for (int64_t i = 0; i < WordsOfRow(matrix); ++i) {
    const int64_t tile = i / tile_words;
    const uint32_t word =
        WordAt(matrix, first_word + tile * together * tile_words + i % tile_words);
    for (int64_t j = 0; j < per_word; ++j) {
      const auto element = static_cast<size_t>(j);
      const int place = matrix.bits == 4 ? kPlaces4[element] : kPlaces8[element];
      const auto stored = static_cast<size_t>(i * per_word + j);
      const int64_t column = matrix.bits == 4
                                 ? static_cast<int64_t>(stored / 32 * 32 + kColumns4[stored % 32])
                                 : static_cast<int64_t>(stored / 16 * 16 + kColumns8[stored % 16]);
      out[column] = static_cast<uint8_t>((word >> (place * matrix.bits)) & mask);
    }
  }
}

// The same of a row whose signed elements follow each other.
void UnpackSigned(const KernelMatrix& matrix, int64_t row, uint8_t* out) {
  const uint32_t mask = (1u << matrix.bits) - 1;
  const uint32_t sign = 1u << (matrix.bits - 1);
  for (int64_t column = 0; column < matrix.columns; ++column) {
    const uint32_t word = WordAt(matrix, row * WordsOfRow(matrix) + column / PerWord(matrix));
    const auto shift = column % PerWord(matrix) * matrix.bits;
    out[column] = static_cast<uint8_t>(((word >> shift) & mask) ^ sign);
  }
}

}  // namespace

bool FitsKernels(const KernelMatrix& matrix) {
  return matrix.columns % kTileColumns == 0 && matrix.rows % Together(matrix) == 0;
}

void CountBits(const KernelMatrix& matrix, BitCounts& counts) {
  const int64_t words = std::min(matrix.rows * WordsOfRow(matrix), int64_t{1} << 14);
  for (int64_t i = 0; i < words; ++i) {
    const uint32_t word = WordAt(matrix, i);
    for (int64_t place = 0; place < PerWord(matrix); ++place) {
      ++counts[(word >> ((place + 1) * matrix.bits - 3)) & 7u];
    }
  }
}

std::optional<KernelOrder> KernelOrderOf(const BitCounts& counts) {
  BitCounts as_signed = counts;
  std::ranges::rotate(as_signed, as_signed.begin() + 4);
  const bool interleaved = PeaksInTheMiddle(counts);
  if (interleaved == PeaksInTheMiddle(as_signed)) return std::nullopt;
  return interleaved ? KernelOrder::kInterleaved : KernelOrder::kSigned;
}

void FromKernelOrder(const KernelMatrix& matrix, KernelOrder order, int64_t first,
                     const Tensor& out) {
  std::vector<uint8_t> elements(static_cast<size_t>(matrix.columns));
  auto* to = static_cast<uint8_t*>(out.data);
  for (int64_t row = first; row < first + out.dim(0); ++row) {
    order == KernelOrder::kInterleaved ? UnpackInterleaved(matrix, row, elements.data())
                                       : UnpackSigned(matrix, row, elements.data());
    for (size_t i = 0; i < elements.size(); ++i) {
      if (matrix.bits == 8) {
        *to++ = elements[i] ^ 0x80u;
      } else if (i % 2 == 1) {
        *to++ = static_cast<uint8_t>(elements[i - 1] | elements[i] << 4);
      }
    }
  }
}

}  // namespace tandem
