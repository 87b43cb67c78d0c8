#include "checkpoint/layouts/bytes.h"

#include <algorithm>

#include "checkpoint/layouts/unpack.h"
#include "checkpoint/stored/stored_tensor.h"

namespace tandem {
namespace {

constexpr std::string_view kElements = ".weight";
constexpr std::string_view kScales = ".weight_scale";
constexpr std::string_view kBlockScales = ".weight_scale_inv";  // factors, despite the name
constexpr std::string_view kZeros = ".weight_zero_point";
constexpr std::string_view kInputZero = ".input_zero_point";

DType ElementType(const QuantScheme& scheme) { return WeightFormat{.scheme = scheme}.element(); }

// The name under which the scales are stored.
std::string_view ScaleName(const StoredMatrix& matrix) {
  return matrix.Find(kScales) == nullptr && matrix.Find(kBlockScales) != nullptr ? kBlockScales
                                                                                 : kScales;
}

// [row blocks, 1, column blocks, 1], as modelopt writes scales of blocks, without the ones.
Tensor WithoutOnes(Tensor scales) {
  const Shape& shape = scales.shape;
  if (shape.rank() == 4 && shape[1] == 1 && shape[3] == 1) scales.shape = {shape[0], shape[2]};
  return scales;
}

class Bytes final : public Layout {
  std::string_view elements() const override { return kElements; }
  std::span<const std::string_view> optional_suffixes() const override {
    return {&kInputFactorsSuffix, 1};
  }

  Result<QuantScheme> Check(const StoredMatrix& matrix,
                            const QuantScheme& described) const override {
    TANDEM_RETURN_IF_ERROR(
        matrix.Get(kElements, ElementType(described), {matrix.rows(), matrix.columns()}).status());
    const Shape shape = ScaleShape(described, matrix.rows(), matrix.columns());
    const std::string_view name = ScaleName(matrix);
    TANDEM_ASSIGN_OR_RETURN(const Tensor scales, matrix.Get(name));
    TANDEM_RETURN_IF_ERROR(CheckStored(WithoutOnes(scales), WeightPart::kScale, shape, DType::kF32,
                                       matrix.PlaceOf(name)));
    TANDEM_RETURN_IF_ERROR(CheckScaleValues(scales, matrix.PlaceOf(name)));
    if (described.zero_points) TANDEM_RETURN_IF_ERROR(GetZeros(matrix, shape).status());
    QuantScheme scheme = described;
    TANDEM_RETURN_IF_ERROR(CheckInputFactors(matrix, scheme));
    TANDEM_RETURN_IF_ERROR(CheckInputZero(matrix));
    TANDEM_RETURN_IF_ERROR(CheckInputScale(matrix, scheme));
    return scheme;
  }

  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/,
                          ScratchBuffers& /*scratch*/) const override {
    return matrix.Get(kElements);
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor scales, matrix.Get(ScaleName(matrix)));
    return ToFloats(scales, ScaleShape(scheme, matrix.rows(), matrix.columns()), scratch);
  }

  Result<Tensor> Zeros(const StoredMatrix& matrix, const QuantScheme& scheme,
                       ScratchBuffers& scratch) const override {
    const Shape shape = ScaleShape(scheme, matrix.rows(), matrix.columns());
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, GetZeros(matrix, shape));
    TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(DType::kI8, shape));
    for (int64_t i = 0; i < out.NumElements(); ++i) {
      out.As<int8_t>()[i] = stored.As<int8_t>()[stored.NumElements() == 1 ? 0 : i];
    }
    return out;
  }

  // One for all, or as many as there are scales.
  static Result<Tensor> GetZeros(const StoredMatrix& matrix, const Shape& shape) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor zeros, matrix.Get(kZeros));
    const bool columns = zeros.shape.rank() == 2 && zeros.shape == Shape{shape[0], 1};
    const bool fits = zeros.NumElements() == 1 || (columns && shape.rank() == 1);
    return matrix.Get(kZeros, DType::kI8, fits ? zeros.shape : shape);
  }

  static Status CheckInputZero(const StoredMatrix& matrix) {
    const Tensor* zero = matrix.Find(kInputZero);
    if (zero == nullptr) return {};
    const auto* bytes = static_cast<const std::byte*>(zero->data);
    // The number 0 has no bits set in any type.
    const bool none = std::all_of(bytes, bytes + zero->NumBytes(),
                                  [](std::byte byte) { return byte == std::byte{0}; });
    if (none) return {};
    return Unimplemented(matrix.PlaceOf(kInputZero) +
                         ": zero points of inputs are not supported; quantize the inputs "
                         "symmetrically, or dynamically");
  }
};

}  // namespace

const Layout& BytesLayout() {
  static const Bytes layout;
  return layout;
}

}  // namespace tandem
