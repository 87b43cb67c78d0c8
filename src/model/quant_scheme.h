// QuantScheme: how quantizable weights are stored: the type of their elements, the extent of a
// scale, and how their inputs are rounded. A value in the spec; a loader may store weights under
// another scheme. The order in which a file packs elements is the concern of its reader: in memory
// they follow each other along a row, the first in the lowest bits.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace tandem {

struct QuantScheme {
  enum class Element : uint8_t { kPlain, kFp8E4M3 };  // kPlain: not quantized, of the spec's type
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

// The type of an element, `plain` where weights are not quantized.
DType ElementType(const QuantScheme& scheme, DType plain);
// UNIMPLEMENTED names the part that is not supported.
Status CheckScheme(const QuantScheme& scheme);
// "fp8 with static input scales", for people.
std::string DescribeScheme(const QuantScheme& scheme);

}  // namespace tandem
