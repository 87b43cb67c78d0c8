#include "checkpoint/layouts/fp4.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/layouts/unpack.h"
#include "checkpoint/stored/stored_tensor.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// How a tool names the tensors of NVFP4.
struct Names {
  std::string_view elements;
  std::string_view tensor_scale;
  bool divides = false;  // by the tensor's scale
};

constexpr std::string_view kScales = ".weight_scale";

class NvFp4 final : public Layout {
 public:
  explicit constexpr NvFp4(const Names& names) : names_(names) {}

 private:
  std::string_view elements() const override { return names_.elements; }
  std::span<const std::string_view> optional_suffixes() const override {
    return {&kInputFactorsSuffix, 1};
  }

  Result<QuantScheme> Check(const StoredMatrix& matrix,
                            const QuantScheme& described) const override {
    const Shape scales = ScaleShape(described, matrix.rows(), matrix.columns());
    TANDEM_RETURN_IF_ERROR(
        matrix.Get(names_.elements, DType::kU8, {matrix.rows(), matrix.columns() / 2}).status());
    TANDEM_RETURN_IF_ERROR(matrix.GetScales(kScales, scales, DType::kF8E4M3).status());
    TANDEM_ASSIGN_OR_RETURN(const Tensor of_tensor, matrix.GetScales(names_.tensor_scale, {1}));
    // The smallest and the largest product are normal numbers too.
    for (const uint8_t bits : {0x01, 0x7e}) {
      const float scale = Product(ToFloat(Float8E4M3{bits}), ScalarOf(of_tensor));
      if (std::isnormal(scale)) continue;
      return InvalidArgument(matrix.PlaceOf(names_.tensor_scale) +
                             ": scales of groups with it are not numbers of fp32");
    }
    QuantScheme scheme = described;
    TANDEM_RETURN_IF_ERROR(CheckInputFactors(matrix, scheme));
    return scheme;
  }

  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/,
                          ScratchBuffers& /*scratch*/) const override {
    return matrix.Get(names_.elements);
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kScales));
    TANDEM_ASSIGN_OR_RETURN(const Tensor of_tensor, matrix.Get(names_.tensor_scale));
    TANDEM_ASSIGN_OR_RETURN(
        const Tensor out,
        ToFloats(stored, ScaleShape(scheme, matrix.rows(), matrix.columns()), scratch));
    const float factor = ScalarOf(of_tensor);
    for (int64_t i = 0; i < out.NumElements(); ++i) {
      out.As<float>()[i] = Product(out.As<float>()[i], factor);
    }
    return out;
  }

  static float ScalarOf(const Tensor& stored) {
    float value = 0.0f;
    ConvertElements(stored, {&value, DType::kF32, stored.shape, {}});
    return value;
  }
  float Product(float scale, float of_tensor) const {
    return names_.divides ? scale / of_tensor : scale * of_tensor;
  }

  Names names_;
};

// Scales are exponents of two, less 127. That of a group of zeros may be 0; its power is as good as
// the next one, which is not denormal.
float PowerOfTwo(uint8_t exponent) { return std::ldexp(1.0f, std::max<int>(exponent, 1) - 127); }
constexpr uint8_t kNotANumber = 0xff;

class MxFp4 final : public Layout {
 public:
  // `of_groups`: the bytes of a group are a dimension of their own.
  constexpr MxFp4(std::string_view elements, std::string_view scales, bool of_groups)
      : elements_(elements), scales_(scales), of_groups_(of_groups) {}

 private:
  std::string_view elements() const override { return elements_; }
  bool stacks_experts() const override { return of_groups_; }

  Result<QuantScheme> Check(const StoredMatrix& matrix,
                            const QuantScheme& described) const override {
    const Shape groups = ScaleShape(described, matrix.rows(), matrix.columns());
    const int64_t bytes = described.block_columns / 2;
    const Shape shape = of_groups_ ? Shape{groups[0], groups[1], bytes}
                                   : Shape{matrix.rows(), matrix.columns() / 2};
    TANDEM_RETURN_IF_ERROR(matrix.Get(elements_, DType::kU8, shape).status());
    if (matrix.columns() % described.block_columns != 0) {
      return InvalidArgument(matrix.PlaceOf(elements_) + ": groups of " +
                             std::to_string(described.block_columns) + " columns do not divide " +
                             std::to_string(matrix.columns()));
    }
    TANDEM_ASSIGN_OR_RETURN(const Tensor scales, matrix.Get(scales_, DType::kU8, groups));
    const auto* first = scales.As<uint8_t>();
    if (std::find(first, first + scales.NumElements(), kNotANumber) !=
        first + scales.NumElements()) {
      return InvalidArgument(matrix.PlaceOf(scales_) + ": holds 255, which is not a number");
    }
    return described;
  }

  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/,
                          ScratchBuffers& /*scratch*/) const override {
    TANDEM_ASSIGN_OR_RETURN(Tensor stored, matrix.Get(elements_));
    stored.shape = {matrix.rows(), matrix.columns() / 2};
    return stored;
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(scales_));
    TANDEM_ASSIGN_OR_RETURN(
        const Tensor out,
        scratch.Allocate(DType::kF32, ScaleShape(scheme, matrix.rows(), matrix.columns())));
    const auto* first = stored.As<uint8_t>();
    std::transform(first, first + stored.NumElements(), out.As<float>(), PowerOfTwo);
    return out;
  }

  std::string_view elements_;
  std::string_view scales_;
  bool of_groups_;
};

}  // namespace

const Layout& NvFp4Layout() {
  static const NvFp4 layout({.elements = ".weight", .tensor_scale = ".weight_scale_2"});
  return layout;
}

const Layout& NvFp4PackedLayout() {
  static const NvFp4 layout(
      {.elements = ".weight_packed", .tensor_scale = ".weight_global_scale", .divides = true});
  return layout;
}

const Layout& MxFp4Layout() {
  static const MxFp4 layout(".weight", ".weight_scale", /*of_groups=*/false);
  return layout;
}

const Layout& MxFp4PackedLayout() {
  static const MxFp4 layout(".weight_packed", ".weight_scale", /*of_groups=*/false);
  return layout;
}

const Layout& MxFp4BlocksLayout() {
  static const MxFp4 layout("_blocks", "_scales", /*of_groups=*/true);
  return layout;
}

}  // namespace tandem
