// QuantScheme: how a matrix of weights is stored: the type of its elements, the extent of a scale,
// and how the inputs of its product are rounded. WeightFormat adds the type of what is not
// quantized. Plain values: a spec says how its model is stored, and a backend packs and multiplies
// by format. The order in which a file packs elements is the concern of its reader: in memory they
// follow each other along a row; of two in a byte, the first is in the lower half.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace tandem {

struct QuantScheme {
  enum class Element : uint8_t {
    kPlain,  // not quantized, of the model's type
    kFp8E4M3,
    kInt8,     // signed
    kInt4,     // 0 .. 15, less 8 or the zero point; two in a byte
    kFp4E2M1,  // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, with the highest bit, their negatives; two in a
               // byte
  };
  // How a product's inputs are rounded where that makes it faster.
  enum class Inputs : uint8_t {
    kPlain,    // not at all
    kDynamic,  // each row by its own maximum
    kStatic,   // by one calibrated scale
  };

  Element element = Element::kPlain;
  // Rows and columns of a quantized weight that share a scale; 0 columns: all of a row.
  int64_t block_rows = 0;
  int64_t block_columns = 0;
  bool zero_points = false;  // each block has a zero point too: weight = (element - zero) * scale
  // Each input is multiplied by a factor of its own before the product: AWQ, SmoothQuant.
  bool input_factors = false;
  // Column c multiplies input order[c]: GPTQ's act-order sorts columns so that those of a block
  // follow each other.
  bool input_order = false;
  // To what inputs are rounded: fp8 for elements of fp8 and of 4 bits, int8 for int8.
  Inputs inputs = Inputs::kPlain;

  constexpr bool is_plain() const { return element == Element::kPlain; }
  constexpr int64_t elements_per_byte() const {
    return element == Element::kInt4 || element == Element::kFp4E2M1 ? 2 : 1;
  }
  // How many scales (and zero points) a matrix has along its rows and columns.
  int64_t row_blocks(int64_t rows) const;
  int64_t column_blocks(int64_t columns) const;
  bool operator==(const QuantScheme&) const = default;
};

// e4m3 with one scale per row.
constexpr QuantScheme Fp8Scheme(QuantScheme::Inputs inputs) {
  return {.element = QuantScheme::Element::kFp8E4M3, .block_rows = 1, .inputs = inputs};
}

// UNIMPLEMENTED names the part that is not supported. A spec is checked where it enters the program
// (ValidateSpec), so that nothing below it meets a scheme that has no code.
Status CheckScheme(const QuantScheme& scheme);
// "fp8 with static input scales", for people.
std::string DescribeScheme(const QuantScheme& scheme);

struct WeightFormat {
  DType dtype = DType::kF32;  // of elements that are not quantized, and of activations
  QuantScheme scheme = {};

  // The type in which elements lie in memory; kU8 where two share a byte.
  DType element() const;
  // Length of a row of `columns` elements, in values of that type.
  int64_t row_length(int64_t columns) const { return columns / scheme.elements_per_byte(); }
  bool operator==(const WeightFormat&) const = default;
};
// "bfloat16" or what DescribeScheme says, for people.
std::string DescribeFormat(const WeightFormat& format);

}  // namespace tandem
