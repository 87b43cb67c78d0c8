#include "tensor/quant_scheme.h"

namespace tandem {
namespace {

using Element = QuantScheme::Element;

const char* ElementName(Element element) {
  switch (element) {
    case Element::kPlain:
      break;
    case Element::kFp8E4M3:
      return "fp8";
    case Element::kInt8:
      return "int8";
    case Element::kInt4:
      return "int4";
    case Element::kFp4E2M1:
      return "fp4";
  }
  return "plain";
}

}  // namespace

Status CheckScheme(const QuantScheme& scheme) {
  if (scheme.is_plain()) {
    if (scheme == QuantScheme{}) return {};
    return InvalidArgument("quantization: weights that are not quantized have no scales");
  }
  const int64_t columns = scheme.block_columns;
  if (scheme.block_rows < 1 || columns < 0 || columns % scheme.elements_per_byte() != 0) {
    return InvalidArgument("quantization: there cannot be a scale for " +
                           std::to_string(scheme.block_rows) + " x " + std::to_string(columns) +
                           " elements");
  }
  if (scheme.block_rows > 1 && scheme.element != Element::kFp8E4M3) {
    return Unimplemented("quantization: a scale for " + std::to_string(scheme.block_rows) +
                         " rows is supported for fp8 alone");
  }
  const bool integers = scheme.element == Element::kInt8 || scheme.element == Element::kInt4;
  if (scheme.zero_points && !integers) {
    return InvalidArgument("quantization: zero points are of integers");
  }
  return {};
}

std::string DescribeScheme(const QuantScheme& scheme) {
  if (scheme.is_plain()) return "not quantized";
  std::string text = ElementName(scheme.element);
  if (scheme.block_rows > 1) {
    text += " in blocks of " + std::to_string(scheme.block_rows) + " x " +
            std::to_string(scheme.block_columns);
  } else if (scheme.block_columns > 0) {
    text += " in groups of " + std::to_string(scheme.block_columns);
  }
  std::string with;
  const auto add = [&with](const char* what) {
    with += (with.empty() ? " with " : ", ") + std::string(what);
  };
  if (scheme.zero_points) add("zero points");
  if (scheme.input_factors) add("input factors");
  if (scheme.input_order) add("an order of inputs");
  if (scheme.inputs == QuantScheme::Inputs::kStatic) add("static input scales");
  return text + with;
}

int64_t QuantScheme::row_blocks(int64_t rows) const { return (rows + block_rows - 1) / block_rows; }

int64_t QuantScheme::column_blocks(int64_t columns) const {
  return block_columns == 0 ? 1 : (columns + block_columns - 1) / block_columns;
}

DType WeightFormat::element() const {
  switch (scheme.element) {
    case Element::kPlain:
      return dtype;
    case Element::kFp8E4M3:
      return DType::kF8E4M3;
    case Element::kInt8:
      return DType::kI8;
    case Element::kInt4:
    case Element::kFp4E2M1:
      return DType::kU8;
  }
  return dtype;
}

std::string DescribeFormat(const WeightFormat& format) {
  return format.scheme.is_plain() ? std::string(DTypeName(format.dtype))
                                  : DescribeScheme(format.scheme);
}

}  // namespace tandem
