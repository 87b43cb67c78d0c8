#include "checkpoint/layouts/gptq.h"

#include "checkpoint/layouts/unpack.h"
#include "checkpoint/stored/stored_tensor.h"

namespace tandem {
namespace {

constexpr std::string_view kElements = ".qweight";
constexpr std::string_view kZeros = ".qzeros";
constexpr std::string_view kScales = ".scales";
constexpr std::string_view kGroups = ".g_idx";

class Gptq final : public Layout {
 public:
  // `zero_offset`: what a stored zero point lacks.
  explicit constexpr Gptq(uint32_t zero_offset) : zero_offset_(zero_offset) {}

  std::string_view elements() const override { return kElements; }

  Result<QuantScheme> Check(const StoredMatrix& matrix,
                            const QuantScheme& described) const override {
    const WordPacking packing = PackingOf(described);
    const int64_t rows = matrix.rows();
    const int64_t columns = matrix.columns();
    TANDEM_RETURN_IF_ERROR(CheckFillsWords(matrix, kElements, "columns", columns, packing));
    TANDEM_RETURN_IF_ERROR(CheckFillsWords(matrix, kZeros, "rows", rows, packing));
    const int64_t groups = described.column_blocks(columns);
    TANDEM_RETURN_IF_ERROR(
        matrix.Get(kElements, DType::kI32, {columns / packing.per_word(), rows}).status());
    TANDEM_RETURN_IF_ERROR(matrix.GetScales(kScales, {groups, rows}).status());
    TANDEM_ASSIGN_OR_RETURN(const Tensor zeros,
                            matrix.Get(kZeros, DType::kI32, {groups, rows / packing.per_word()}));
    QuantScheme scheme = described;
    scheme.zero_points = scheme.zero_points || !AreInTheMiddle(zeros, packing);
    scheme.input_order = false;
    if (described.input_order || matrix.Find(kGroups) != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> order, Order(matrix, scheme));
      scheme.input_order = !order.empty();
    }
    return scheme;
  }

 protected:
  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& scheme,
                          ScratchBuffers& scratch) const override {
    const WordPacking packing = PackingOf(scheme);
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kElements));
    const int64_t words = stored.dim(0);  // of a row
    const int64_t rows = stored.dim(1);
    const DType dtype = packing.bits == 8 ? DType::kI8 : DType::kU8;
    TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(dtype, {rows, words * 4}));
    // The bytes of a word are those of the row; integers of 8 bits become signed.
    TransposeWords(stored, packing.bits == 8 ? 0x80808080u : 0u, out);
    if (scheme.input_order) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> order, Order(matrix, scheme));
      ReorderColumns(out, matrix.columns(), order);
    }
    return out;
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kScales));
    return ToTransposedFloats(stored, ScaleShape(scheme, matrix.rows(), matrix.columns()), scratch);
  }

  Result<Tensor> Zeros(const StoredMatrix& matrix, const QuantScheme& scheme,
                       ScratchBuffers& scratch) const override {
    const WordPacking packing = PackingOf(scheme);
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kZeros));
    const int64_t rows = matrix.rows();
    const int64_t groups = stored.dim(0);
    const DType dtype = packing.bits == 8 ? DType::kI8 : DType::kU8;
    TANDEM_ASSIGN_OR_RETURN(
        const Tensor out,
        scratch.Allocate(dtype, ScaleShape(scheme, matrix.rows(), matrix.columns())));
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t row = 0; row < rows; ++row) {
        static_cast<uint8_t*>(out.data)[row * groups + group] =
            ToElement(ZeroPoint(stored, packing, group, row), packing.bits);
      }
    }
    return out;
  }

  Result<Tensor> InputOrder(const StoredMatrix& matrix, const QuantScheme& scheme,
                            ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> order, Order(matrix, scheme));
    return OrderTensor(order, scratch);
  }

 private:
  static Result<std::vector<int32_t>> Order(const StoredMatrix& matrix, const QuantScheme& scheme) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor groups,
                            matrix.Get(kGroups, DType::kI32, {matrix.columns()}));
    return SortColumns(groups, scheme, matrix.PlaceOf(kGroups));
  }

  uint32_t ZeroPoint(const Tensor& stored, const WordPacking& packing, int64_t group,
                     int64_t row) const {
    const int64_t per_word = packing.per_word();
    const uint32_t word = LoadWord(stored, group * stored.dim(1) + row / per_word);
    return ((word >> (row % per_word * packing.bits)) + zero_offset_) & packing.mask();
  }

  // The zero points of weights that were quantized symmetrically.
  bool AreInTheMiddle(const Tensor& stored, const WordPacking& packing) const {
    uint32_t middle = 0;
    for (int64_t i = 0; i < packing.per_word(); ++i) {
      middle |= ((uint32_t{1} << (packing.bits - 1)) - zero_offset_) << (i * packing.bits);
    }
    for (int64_t i = 0; i < stored.NumElements(); ++i) {
      if (LoadWord(stored, i) != middle) return false;
    }
    return true;
  }

  uint32_t zero_offset_;
};

}  // namespace

const Layout& GptqLayout() {
  static const Gptq layout(1);
  return layout;
}

const Layout& GptqV2Layout() {
  static const Gptq layout(0);
  return layout;
}

}  // namespace tandem
