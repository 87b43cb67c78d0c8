// QuantScheme: how a matrix of weights is stored: the type of its elements, the extent of a scale,
// and how the inputs of its product are rounded. WeightFormat adds the type of what is not
// quantized. Plain values: a spec says how its model is stored, and a backend packs and multiplies
// by format. The order in which a file packs elements is the concern of its reader: in memory they
// follow each other along a row, the first in the lowest bits.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace tandem {

struct QuantScheme {
  enum class Element : uint8_t { kPlain, kFp8E4M3 };  // kPlain: not quantized, of the model's type
  // How a product's inputs are rounded where that makes it faster.
  enum class Inputs : uint8_t {
    kPlain,    // not at all
    kDynamic,  // each row by its own maximum
    kStatic,   // by one calibrated scale
  };

  Element element = Element::kPlain;
  // Rows and columns of the weight that share a scale; 0: all of them.
  int64_t block_rows = 0;
  int64_t block_columns = 0;
  bool zero_points = false;  // each block has a zero point too: weight = (element - zero) * scale
  Inputs inputs = Inputs::kPlain;

  bool is_plain() const { return element == Element::kPlain; }
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

  // The type of an element.
  DType element() const;
  bool operator==(const WeightFormat&) const = default;
};
// "bfloat16" or what DescribeScheme says, for people.
std::string DescribeFormat(const WeightFormat& format);

}  // namespace tandem
