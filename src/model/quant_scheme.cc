#include "model/quant_scheme.h"

namespace tandem {

DType ElementType(const QuantScheme& scheme, DType plain) {
  switch (scheme.element) {
    case QuantScheme::Element::kPlain:
      return plain;
    case QuantScheme::Element::kFp8E4M3:
      return DType::kF8E4M3;
  }
  return plain;
}

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

}  // namespace tandem
