#include "checkpoint/layouts/fp4.h"

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

}  // namespace tandem
