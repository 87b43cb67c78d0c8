#include "checkpoint/layouts/awq.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "checkpoint/layouts/unpack.h"
#include "checkpoint/stored/stored_tensor.h"

namespace tandem {
namespace {

constexpr std::string_view kElements = ".qweight";
constexpr std::string_view kZeros = ".qzeros";
constexpr std::string_view kScales = ".scales";
constexpr WordPacking kPacking{.bits = 4};
constexpr int64_t kPerWord = kPacking.per_word();
constexpr uint32_t kMiddle = 8;  // the zero point where none is stored

// What the two have in common: the elements of zero points where they may be missing.
class Awq : public Layout {
 public:
  std::string_view elements() const override { return kElements; }

  Result<QuantScheme> Check(const StoredMatrix& matrix,
                            const QuantScheme& described) const override {
    TANDEM_RETURN_IF_ERROR(CheckElements(matrix, described));
    TANDEM_RETURN_IF_ERROR(CheckScales(matrix, described));
    QuantScheme scheme = described;
    if (!described.zero_points && matrix.Find(kZeros) == nullptr) return scheme;
    TANDEM_ASSIGN_OR_RETURN(const Tensor zeros,
                            matrix.Get(kZeros, DType::kI32, StoredZeros(matrix, described)));
    scheme.zero_points = described.zero_points || !AreInTheMiddle(matrix, described, zeros);
    return scheme;
  }

 protected:
  virtual Status CheckElements(const StoredMatrix& matrix, const QuantScheme& scheme) const = 0;
  virtual Shape StoredZeros(const StoredMatrix& matrix, const QuantScheme& scheme) const = 0;
  virtual Status CheckScales(const StoredMatrix& matrix, const QuantScheme& scheme) const = 0;
  virtual uint32_t ZeroPoint(const Tensor& stored, int64_t row, int64_t group) const = 0;

  Result<Tensor> Zeros(const StoredMatrix& matrix, const QuantScheme& scheme,
                       ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kZeros));
    TANDEM_ASSIGN_OR_RETURN(
        const Tensor out,
        scratch.Allocate(DType::kU8, ScaleShape(scheme, matrix.rows(), matrix.columns())));
    const int64_t groups = scheme.column_blocks(matrix.columns());
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      for (int64_t group = 0; group < groups; ++group) {
        out.As<uint8_t>()[row * groups + group] =
            static_cast<uint8_t>(ZeroPoint(stored, row, group));
      }
    }
    return out;
  }

 private:
  bool AreInTheMiddle(const StoredMatrix& matrix, const QuantScheme& scheme,
                      const Tensor& zeros) const {
    const int64_t groups = scheme.column_blocks(matrix.columns());
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      for (int64_t group = 0; group < groups; ++group) {
        if (ZeroPoint(zeros, row, group) != kMiddle) return false;
      }
    }
    return true;
  }
};

// qweight [columns, rows / 8], qzeros [groups, rows / 8], scales [groups, rows].
class Gemm final : public Awq {
  // Where in a word the element of row 8 w + i is.
  static constexpr std::array<int, 8> kPlaces = {0, 4, 1, 5, 2, 6, 3, 7};

  // Of the words of 128 columns, those of 128 rows.
  static constexpr int64_t kSide = kPerWord * std::tuple_size_v<NibbleSquares::value_type>;
  using Square = std::array<std::array<uint32_t, kSide / kPerWord>, kSide>;

  // The columns of the rows that a word of each column holds.
  static void WriteRows(const Square& square, size_t word, int64_t row_bytes, uint8_t* out) {
    NibbleSquares nibbles;
    for (size_t i = 0; i < nibbles[0].size(); ++i) {
      for (size_t j = 0; j < nibbles.size(); ++j) nibbles[j][i] = square[i * kPerWord + j][word];
    }
    TransposeNibbles(nibbles);
    for (const int place : kPlaces) {
      const auto& row = nibbles[static_cast<size_t>(place)];
      std::memcpy(out, row.data(), sizeof(row));
      out += row_bytes;
    }
  }

  static uint32_t ElementOf(uint32_t word, int64_t row) {
    return (word >> (kPlaces[static_cast<size_t>(row % kPerWord)] * 4)) & kPacking.mask();
  }

  Status CheckElements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/) const override {
    TANDEM_RETURN_IF_ERROR(CheckFillsWords(matrix, kElements, "rows", matrix.rows(), kPacking));
    return matrix.Get(kElements, DType::kI32, {matrix.columns(), matrix.rows() / kPerWord})
        .status();
  }
  Shape StoredZeros(const StoredMatrix& matrix, const QuantScheme& scheme) const override {
    return {scheme.column_blocks(matrix.columns()), matrix.rows() / kPerWord};
  }
  Status CheckScales(const StoredMatrix& matrix, const QuantScheme& scheme) const override {
    return matrix.GetScales(kScales, {scheme.column_blocks(matrix.columns()), matrix.rows()})
        .status();
  }
  uint32_t ZeroPoint(const Tensor& stored, int64_t row, int64_t group) const override {
    return ElementOf(LoadWord(stored, group * stored.dim(1) + row / kPerWord), row);
  }

  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/,
                          ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kElements));
    const int64_t row_bytes = matrix.columns() / 2;
    const int64_t words = stored.dim(1);
    TANDEM_ASSIGN_OR_RETURN(const Tensor out,
                            scratch.Allocate(DType::kU8, {matrix.rows(), row_bytes}));
    // Squares of 128 rows and columns: lines of cache are read whole, and written whole.
    const int64_t in_squares = matrix.columns() / kSide * kSide;
    Square square;
    for (int64_t column = 0; column < in_squares; column += kSide) {
      for (int64_t word = 0; word < words; word += kSide / kPerWord) {
        const int64_t width = std::min(words - word, kSide / kPerWord);
        for (int64_t i = 0; i < kSide; ++i) {
          const int64_t at = ((column + i) * words + word) * int64_t{sizeof(uint32_t)};
          std::memcpy(square[static_cast<size_t>(i)].data(),
                      static_cast<const std::byte*>(stored.data) + at,
                      static_cast<size_t>(width) * sizeof(uint32_t));
        }
        for (int64_t i = 0; i < width; ++i) {
          const int64_t first_row = (word + i) * kPerWord;
          WriteRows(square, static_cast<size_t>(i), row_bytes,
                    out.As<uint8_t>() + first_row * row_bytes + column / 2);
        }
      }
    }
    for (int64_t byte = in_squares / 2; byte < row_bytes; ++byte) {
      for (int64_t word = 0; word < words; ++word) {
        const uint32_t first = LoadWord(stored, 2 * byte * words + word);
        const uint32_t second = LoadWord(stored, (2 * byte + 1) * words + word);
        for (int64_t i = 0; i < kPerWord; ++i) {
          out.As<uint8_t>()[(word * kPerWord + i) * row_bytes + byte] =
              static_cast<uint8_t>(ElementOf(first, i) | ElementOf(second, i) << 4);
        }
      }
    }
    return out;
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kScales));
    return ToTransposedFloats(stored, ScaleShape(scheme, matrix.rows(), matrix.columns()), scratch);
  }
};

// qweight [rows, columns / 8], qzeros [rows, words], scales [rows, 8 words]: a row's words are
// rounded up, to more for small groups, and the rest are zeros.
class Gemv final : public Awq {
  static int64_t ZeroWords(const StoredMatrix& matrix, const QuantScheme& scheme) {
    const int64_t together = scheme.block_columns == 0 ? 1 : 128 / scheme.block_columns;
    const int64_t multiple = std::max(together, int64_t{1});
    const int64_t words = (scheme.column_blocks(matrix.columns()) + kPerWord - 1) / kPerWord;
    return (words + multiple - 1) / multiple * multiple;
  }

  Status CheckElements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/) const override {
    TANDEM_RETURN_IF_ERROR(
        CheckFillsWords(matrix, kElements, "columns", matrix.columns(), kPacking));
    return matrix.Get(kElements, DType::kI32, {matrix.rows(), matrix.columns() / kPerWord})
        .status();
  }
  Shape StoredZeros(const StoredMatrix& matrix, const QuantScheme& scheme) const override {
    return {matrix.rows(), ZeroWords(matrix, scheme)};
  }
  Status CheckScales(const StoredMatrix& matrix, const QuantScheme& scheme) const override {
    const Shape shape = {matrix.rows(), ZeroWords(matrix, scheme) * kPerWord};
    TANDEM_ASSIGN_OR_RETURN(const Tensor scales, matrix.Get(kScales, DType::kF32, shape));
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      Tensor used = scales.RowRange(row, 1);
      used.shape = {scheme.column_blocks(matrix.columns())};
      TANDEM_RETURN_IF_ERROR(CheckScaleValues(used, matrix.PlaceOf(kScales)));
    }
    return {};
  }
  uint32_t ZeroPoint(const Tensor& stored, int64_t row, int64_t group) const override {
    const uint32_t word = LoadWord(stored, row * stored.dim(1) + group / kPerWord);
    return (word >> (group % kPerWord * 4)) & kPacking.mask();
  }

  // The bytes of a word are those of the row.
  Result<Tensor> Elements(const StoredMatrix& matrix, const QuantScheme& /*scheme*/,
                          ScratchBuffers& /*scratch*/) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kElements));
    return Tensor{stored.data, DType::kU8, {matrix.rows(), matrix.columns() / 2}, {}};
  }

  Result<Tensor> Scales(const StoredMatrix& matrix, const QuantScheme& scheme,
                        ScratchBuffers& scratch) const override {
    TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kScales));
    TANDEM_ASSIGN_OR_RETURN(const Tensor padded, ToFloats(stored, stored.shape, scratch));
    const Shape shape = ScaleShape(scheme, matrix.rows(), matrix.columns());
    TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(DType::kF32, shape));
    const int64_t groups = scheme.column_blocks(matrix.columns());
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      std::copy_n(padded.As<float>() + row * padded.dim(1), groups, out.As<float>() + row * groups);
    }
    return out;
  }
};

}  // namespace

const Layout& AwqGemmLayout() {
  static const Gemm layout;
  return layout;
}

const Layout& AwqGemvLayout() {
  static const Gemv layout;
  return layout;
}

}  // namespace tandem
