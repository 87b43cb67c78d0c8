#include "tensor/quant_scheme.h"

namespace tandem {

Status CheckScheme(const QuantScheme& scheme) {
  if (scheme.is_plain()) {
    if (scheme == QuantScheme{}) return {};
    return InvalidArgument("quantization: weights that are not quantized have no scales");
  }
  if (scheme.block_rows != 1 || scheme.block_columns != 0) {
    return Unimplemented("quantization: a scale for " + std::to_string(scheme.block_rows) + " x " +
                         std::to_string(scheme.block_columns) +
                         " elements is not supported; it must be one for each row");
  }
  if (scheme.zero_points) return Unimplemented("quantization: zero_points are not supported");
  if (scheme.inputs != QuantScheme::Inputs::kPlain) return {};
  return Unimplemented("quantization: fp8 weights without fp8 inputs are not supported");
}

std::string DescribeScheme(const QuantScheme& scheme) {
  if (scheme.is_plain()) return "not quantized";
  return scheme.inputs == QuantScheme::Inputs::kStatic ? "fp8 with static input scales" : "fp8";
}

DType WeightFormat::element() const {
  switch (scheme.element) {
    case QuantScheme::Element::kPlain:
      return dtype;
    case QuantScheme::Element::kFp8E4M3:
      return DType::kF8E4M3;
  }
  return dtype;
}

std::string DescribeFormat(const WeightFormat& format) {
  return format.scheme.is_plain() ? std::string(DTypeName(format.dtype))
                                  : DescribeScheme(format.scheme);
}

}  // namespace tandem
