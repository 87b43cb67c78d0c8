// What layouts have in common: numbers packed into 32-bit words, scales in the shape of a scheme,
// and columns sorted by their group. Pure functions over checked tensors, which may be misaligned.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layouts/layout.h"
#include "checkpoint/stored/as_dtype.h"
#include "tensor/quant_scheme.h"

namespace tandem {

inline constexpr std::string_view kInputFactorsSuffix = ".pre_quant_scale";
inline constexpr std::string_view kInputScaleSuffix = ".input_scale";

// Integers packed into words of 32 bits, the first in the lowest bits.
struct WordPacking {
  int64_t bits = 4;

  constexpr int64_t per_word() const { return 32 / bits; }
  constexpr uint32_t mask() const { return (uint32_t{1} << bits) - 1; }
};
// Of the scheme's elements and zero points: 4 or 8 bits.
WordPacking PackingOf(const QuantScheme& scheme);

inline uint32_t LoadWord(const Tensor& words, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, static_cast<const std::byte*>(words.data) + index * int64_t{sizeof(word)},
              sizeof(word));
  return word;
}

// An integer as it is packed, 0 to 15 or 255, in the type of the scheme's elements in memory: 8
// bits are signed there.
inline uint8_t ToElement(uint32_t packed, int64_t bits) {
  return static_cast<uint8_t>(bits == 8 ? packed ^ 0x80u : packed);
}

// INVALID_ARGUMENT unless the matrix' rows or columns (`what`, `count`) fill words.
Status CheckFillsWords(const StoredMatrix& matrix, std::string_view suffix, const char* what,
                       int64_t count, const WordPacking& packing);

// [rows] where a scale is a row's, else [row blocks, column blocks].
Shape ScaleShape(const QuantScheme& scheme, int64_t rows, int64_t columns);

// The transpose of [columns, rows] words, with the bits of `flipped` changed, into `out`.
void TransposeWords(const Tensor& stored, uint32_t flipped, const Tensor& out);

// 16 squares of 8 words: of each, nibble j of word i becomes nibble i of word j.
using NibbleSquares = std::array<std::array<uint32_t, 16>, 8>;
void TransposeNibbles(NibbleSquares& words);

// Checks that `.pre_quant_scale` holds a factor for each input, if it is stored; sets the scheme's
// input_factors to whether it is.
Status CheckInputFactors(const StoredMatrix& matrix, QuantScheme& scheme);

// Checks that `.input_scale` is stored where the scheme's inputs are static.
Status CheckInputScale(const StoredMatrix& matrix, const QuantScheme& scheme);

// The columns sorted by the group that `groups`, [columns] int32, gives each; the columns of a
// group stay in their order. INVALID_ARGUMENT unless sorting makes the scheme's blocks. Empty where
// the columns are sorted already.
Result<std::vector<int32_t>> SortColumns(const Tensor& groups, const QuantScheme& scheme,
                                         const std::string& where);
// Moves the column order[c] of every row to column c.
void ReorderColumns(const Tensor& elements, int64_t columns, const std::vector<int32_t>& order);
Result<Tensor> OrderTensor(const std::vector<int32_t>& order, ScratchBuffers& scratch);

}  // namespace tandem
