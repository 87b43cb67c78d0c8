// From a packed weight to the arguments and types of our own matrix kernels.
#pragma once

#include "ops/cuda/linear/linear_kernels.cuh"
#include "ops/cuda/linear/pack.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

inline LinearArgs ArgsOf(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  LinearArgs args;
  args.x = x.data;
  args.weight = weight.data.data();
  args.bias = weight.bias.As<float>();
  args.out = out.data;
  args.tokens = static_cast<int>(x.dim(0));
  args.rows = static_cast<int>(weight.rows);
  args.cols = static_cast<int>(weight.cols);
  args.segment = SegmentCols(weight.cols);
  args.float_out = out.dtype == DType::kF32;
  if (IsInt4(weight.scheme)) {
    const Int4Layout layout(weight.rows, weight.cols, weight.scheme);
    args.group_scales = weight.scales.As<float2>();
    args.group_zeros = weight.zeros.As<uint32_t>();
    args.groups = static_cast<int>(layout.groups);
    args.group_shift = layout.group_shift;
  } else {
    args.scales = weight.scales.As<float>();
    args.pitch = static_cast<int>(PackedPitch(weight.cols, weight.dtype));
  }
  return args;
}

// Calls call.operator()<T, W>() with the types of activations and weights.
template <typename Call>
void WithTypes(DType activations, const LinearWeight& weight, const Call& call) {
  const auto with_activations = [&]<typename T>() {
    switch (weight.scheme.element) {
      case QuantScheme::Element::kFp8E4M3:
        return call.template operator()<T, Fp8>();
      case QuantScheme::Element::kInt8:
        return call.template operator()<T, Int8>();
      case QuantScheme::Element::kInt4:
        return weight.scheme.block_columns == 32 ? call.template operator()<T, Int4<2>>()
                                                 : call.template operator()<T, Int4<1>>();
      default:
        return call.template operator()<T, T>();
    }
  };
  activations == DType::kBF16 ? with_activations.template operator()<Bf16>()
                              : with_activations.template operator()<Fp16>();
}

// Whether something is done to the inputs before the product.
inline bool ArrangesInputs(const LinearWeight& weight) {
  return weight.scheme.input_factors || weight.scheme.input_order;
}

// Whether the product of few activations of this type and the weight takes them as factors
// (LinearArgs::x_is_factors), which are another type.
inline bool TakesFactors(DType activations, const LinearWeight& weight) {
  bool takes = false;
  WithTypes(activations, weight, [&]<typename T, typename W>() {
    takes = !std::is_same_v<T, Factor<T, W>> && !ArrangesInputs(weight);
  });
  return takes;
}

}  // namespace tandem::ops::cuda
