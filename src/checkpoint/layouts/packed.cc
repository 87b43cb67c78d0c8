#include "checkpoint/layouts/packed.h"

#include <algorithm>

#include "checkpoint/layouts/unpack.h"
#include "checkpoint/stored/stored_tensor.h"

namespace tandem {
namespace {

constexpr std::string_view kElements = ".weight_packed";
constexpr std::string_view kScales = ".weight_scale";
constexpr std::string_view kZeros = ".weight_zero_point";
constexpr std::string_view kGroups = ".weight_g_idx";
constexpr std::string_view kShape = ".weight_shape";

class Packed final : public Layout {
  std::string_view elements() const override { return kElements; }
  std::span<const std::string_view> optional_suffixes() const override { return {&kGroups, 1}; }

  Result<QuantScheme> Check(const StoredMatrix& matrix,
                            const QuantScheme& described) const override {
    const WordPacking packing = PackingOf(described);
    const int64_t rows = matrix.rows();
    const int64_t columns = matrix.columns();
    TANDEM_RETURN_IF_ERROR(CheckShape(matrix));
    if (columns * packing.bits % 8 != 0) {
      TANDEM_RETURN_IF_ERROR(CheckFillsWords(matrix, kElements, "columns", columns, packing));
    }
    // Rows end with zeros up to a whole word.
    const int64_t words = (columns + packing.per_word() - 1) / packing.per_word();
    TANDEM_RETURN_IF_ERROR(matrix.Get(kElements, DType::kI32, {rows, words}).status());
    TANDEM_RETURN_IF_ERROR(
        matrix.GetScales(kScales, ScaleShape(described, rows, columns)).status());
    QuantScheme scheme = described;
    if (scheme.zero_points) TANDEM_RETURN_IF_ERROR(GetZeros(matrix, scheme).status());
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> order, Order(matrix, scheme));
    scheme.input_order = !order.empty();
    TANDEM_RETURN_IF_ERROR(CheckInputScale(matrix, scheme));
    return scheme;
  }

  // The bytes of a word are those of the row; integers of 8 bits become signed.
  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& scheme,
                          ScratchBuffers& scratch) const override {
    const WordPacking packing = PackingOf(scheme);
    TANDEM_ASSIGN_OR_RETURN(const Tensor words, matrix.Get(kElements));
    const Shape shape = {words.dim(0), matrix.columns() * packing.bits / 8};
    const int64_t pitch = words.dim(1) * 4;
    const DType dtype = packing.bits == 8 ? DType::kI8 : DType::kU8;
    const bool as_stored = packing.bits == 4 && !scheme.input_order && pitch == shape[1];
    if (as_stored) return Tensor{words.data, dtype, shape, {}};
    TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(dtype, shape));
    for (int64_t row = 0; row < shape[0]; ++row) {
      const auto* from = static_cast<const uint8_t*>(words.data) + row * pitch;
      std::transform(from, from + shape[1], static_cast<uint8_t*>(out.data) + row * shape[1],
                     [&](uint8_t byte) { return packing.bits == 8 ? ToElement(byte, 8) : byte; });
    }
    if (scheme.input_order) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> order, Order(matrix, scheme));
      ReorderColumns(out, matrix.columns(), order);
    }
    return out;
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kScales));
    return ToFloats(stored, ScaleShape(scheme, matrix.rows(), matrix.columns()), scratch);
  }

  Result<Tensor> Zeros(const StoredMatrix& matrix, const QuantScheme& scheme,
                       ScratchBuffers& scratch) const override {
    const WordPacking packing = PackingOf(scheme);
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, GetZeros(matrix, scheme));
    const Shape shape = ScaleShape(scheme, matrix.rows(), matrix.columns());
    TANDEM_ASSIGN_OR_RETURN(const Tensor out,
                            scratch.Allocate(packing.bits == 8 ? DType::kI8 : DType::kU8, shape));
    const int64_t groups = scheme.column_blocks(matrix.columns());
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      for (int64_t group = 0; group < groups; ++group) {
        uint32_t zero = 0;
        if (stored.dtype == DType::kI32) {
          const int64_t per_word = packing.per_word();
          zero =
              LoadWord(stored, row / per_word * groups + group) >> (row % per_word * packing.bits) &
              packing.mask();
        } else {
          const int number = stored.As<int8_t>()[row * groups + group];
          zero = static_cast<uint32_t>(number + (1 << (packing.bits - 1)));
        }
        static_cast<uint8_t*>(out.data)[row * groups + group] = ToElement(zero, packing.bits);
      }
    }
    return out;
  }

  Result<Tensor> InputOrder(const StoredMatrix& matrix, const QuantScheme& scheme,
                            ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> order, Order(matrix, scheme));
    return OrderTensor(order, scratch);
  }

  // Words along the rows; before version 0.10, numbers of 8 bits as they are.
  static Result<Tensor> GetZeros(const StoredMatrix& matrix, const QuantScheme& scheme) {
    const WordPacking packing = PackingOf(scheme);
    const int64_t groups = scheme.column_blocks(matrix.columns());
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kZeros));
    if (stored.dtype != DType::kI8) {
      const int64_t words = (matrix.rows() + packing.per_word() - 1) / packing.per_word();
      return matrix.Get(kZeros, DType::kI32, {words, groups});
    }
    TANDEM_RETURN_IF_ERROR(matrix.Get(kZeros, DType::kI8, {matrix.rows(), groups}).status());
    const int limit = 1 << (packing.bits - 1);
    const auto* first = stored.As<int8_t>();
    const bool fit = std::all_of(first, first + stored.NumElements(),
                                 [limit](int zero) { return zero >= -limit && zero < limit; });
    if (fit) return stored;
    return InvalidArgument(matrix.PlaceOf(kZeros) + ": holds zero points that are no numbers of " +
                           std::to_string(packing.bits) + " bits");
  }

  static Result<std::vector<int32_t>> Order(const StoredMatrix& matrix, const QuantScheme& scheme) {
    if (matrix.Find(kGroups) == nullptr) return std::vector<int32_t>();
    TANDEM_ASSIGN_OR_RETURN(const Tensor groups,
                            matrix.Get(kGroups, DType::kI32, {matrix.columns()}));
    // -1 everywhere: not used.
    bool used = false;
    for (int64_t i = 0; i < groups.NumElements(); ++i) used |= LoadWord(groups, i) != ~0u;
    if (!used) return std::vector<int32_t>();
    return SortColumns(groups, scheme, matrix.PlaceOf(kGroups));
  }

  static Status CheckShape(const StoredMatrix& matrix) {
    if (matrix.Find(kShape) == nullptr) return {};
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kShape, DType::kI64, {2}));
    std::array<int64_t, 2> sizes{};
    std::memcpy(sizes.data(), stored.data, sizeof(sizes));
    if (sizes[0] == matrix.rows() && sizes[1] == matrix.columns()) return {};
    return InvalidArgument(matrix.PlaceOf(kShape) + ": holds " + Shape::Of(sizes).ToString() +
                           "; config.json requires " +
                           Shape{matrix.rows(), matrix.columns()}.ToString());
  }
};

}  // namespace

const Layout& PackedLayout() {
  static const Packed layout;
  return layout;
}

}  // namespace tandem
