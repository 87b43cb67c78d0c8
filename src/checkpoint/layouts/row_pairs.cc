#include "checkpoint/layouts/row_pairs.h"

#include "checkpoint/layouts/unpack.h"
#include "checkpoint/stored/stored_tensor.h"

namespace tandem {
namespace {

constexpr std::string_view kElements = ".weight";
constexpr std::string_view kScales = ".weight_scale";

class RowPairs final : public Layout {
  std::string_view elements() const override { return kElements; }
  std::span<const std::string_view> optional_suffixes() const override {
    return {&kInputFactorsSuffix, 1};
  }

  Result<QuantScheme> Check(const StoredMatrix& matrix,
                            const QuantScheme& described) const override {
    const int64_t rows = matrix.rows();
    if (rows % 2 != 0) {
      return InvalidArgument(matrix.PlaceOf(kElements) + ": a byte holds two rows, but there are " +
                             std::to_string(rows));
    }
    TANDEM_RETURN_IF_ERROR(
        matrix.Get(kElements, DType::kU8, {rows / 2, matrix.columns()}).status());
    TANDEM_RETURN_IF_ERROR(
        matrix.GetScales(kScales, ScaleShape(described, rows, matrix.columns())).status());
    QuantScheme scheme = described;
    TANDEM_RETURN_IF_ERROR(CheckInputFactors(matrix, scheme));
    TANDEM_RETURN_IF_ERROR(CheckInputScale(matrix, scheme));
    return scheme;
  }

  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/,
                          ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kElements));
    const int64_t columns = matrix.columns();
    TANDEM_ASSIGN_OR_RETURN(const Tensor out,
                            scratch.Allocate(DType::kU8, {matrix.rows(), columns / 2}));
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      const uint8_t* from = stored.As<uint8_t>() + row / 2 * columns;
      uint8_t* to = out.As<uint8_t>() + row * (columns / 2);
      // Signed numbers become 0 to 15.
      const auto element = [&](int64_t column) {
        return ((from[column] >> (row % 2 * 4)) & 15) ^ 8;
      };
      for (int64_t byte = 0; byte < columns / 2; ++byte) {
        to[byte] = static_cast<uint8_t>(element(2 * byte) | element(2 * byte + 1) << 4);
      }
    }
    return out;
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kScales));
    return ToFloats(stored, ScaleShape(scheme, matrix.rows(), matrix.columns()), scratch);
  }
};

}  // namespace

const Layout& RowPairsLayout() {
  static const RowPairs layout;
  return layout;
}

}  // namespace tandem
