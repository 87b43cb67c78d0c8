// The table of parts: a weight is stored in several tensors (itself, its bias, its scales), and
// each kind of them is a row. Readers, loaders, byte counts, sharding and checkpoints ask the rows,
// so a new part is a new row and the code that computes with it. Data.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/spec.h"

namespace tandem {

struct WeightRow;

enum class WeightPart : uint8_t {
  kWeight,
  kBias,
  kScale,         // quantized: factor of the elements of a block
  kZero,          // zero points: what is subtracted from the elements of a block
  kInputFactors,  // factors of the inputs of the product
  kInputOrder,    // the input that a column multiplies
  kInputScale,    // static inputs: divisor of an input before it is rounded
  kCacheScale,    // of keys or values: what an element of a cache of 8 bits is multiplied with
  kCount,         // not a part
};

struct WeightPartRow {
  // How many values there are, and thereby what becomes of them over ranks and in fused tensors.
  enum class Extent : uint8_t {
    kElements,  // rows and columns of the weight, or the elements of a vector
    kRows,      // one for each row of the weight
    kBlocks,    // one for each block of the scheme: [rows] where a block is a row
    kColumns,   // one for each column; several weights with the same inputs have the same
    kHeads,     // one for each key-value head
    kOne,       // one, on every rank; of several weights with the same inputs, the largest
  };
  enum class Values : uint8_t {
    kStored,   // of the weight's format
    kPlain,    // of the spec's type
    kFactors,  // fp32, positive
    kZeros,    // 8 bits, signed where the elements are
    kIndices,  // int32
  };
  using Test = bool (*)(const ModelSpec& spec, const WeightRow& row, int64_t layer);

  WeightPart part = WeightPart::kWeight;
  // After the weight's name; the suffix of a cache scale is in the weight's row.
  std::string_view hf_suffix = {};
  std::string_view trtllm_suffix = {};
  std::string_view trtllm_name = {};  // in a layer, in place of the weight's name and the suffix
  Extent extent = Extent::kElements;
  Values values = Values::kStored;
  Test present = nullptr;  // of a weight that the layer has

  // The part has rows of its own: those of the weight, or of its blocks.
  bool follows_rows() const {
    return extent == Extent::kElements || extent == Extent::kRows || extent == Extent::kBlocks;
  }
};

// Every part once, in the order of WeightPart.
std::span<const WeightPartRow> WeightPartRows();
const WeightPartRow& RowOf(WeightPart part);

inline bool IsScale(WeightPart part) {
  return RowOf(part).values == WeightPartRow::Values::kFactors;
}

}  // namespace tandem
