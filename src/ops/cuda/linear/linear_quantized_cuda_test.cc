// Products with weights of 8 and 4 bits on the GPU, against WidenRow in double precision: groups,
// zero points, odd shapes, every kernel's number of rows. None on a machine without a GPU.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/testing/op_test.h"

namespace tandem::ops {
namespace {

using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;

// Stored weights on the host.
struct StoredPart {
  std::vector<uint8_t> elements;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  std::vector<float> input_factors;
  std::vector<int32_t> input_order;
  LinearPart part;
};

std::unique_ptr<StoredPart> MakePart(const QuantScheme& scheme, int64_t rows, int64_t cols,
                                     uint32_t seed) {
  std::mt19937 rng(seed);
  auto stored = std::make_unique<StoredPart>();
  const int64_t row_bytes = cols / scheme.elements_per_byte();
  for (int64_t i = 0; i < rows * row_bytes; ++i) {
    stored->elements.push_back(static_cast<uint8_t>(rng()));
  }
  const int64_t blocks = scheme.column_blocks(cols);
  // Powers of two far apart show a wrong scale, and sums in any other order.
  for (int64_t i = 0; i < rows * blocks; ++i) {
    const float mantissa = 1.0f + static_cast<float>(rng() % 1000) * 1e-3f;
    stored->scales.push_back(std::ldexp(mantissa, -8 + static_cast<int>(rng() % 5)));
    stored->zeros.push_back(static_cast<uint8_t>(rng() % 17));
  }
  const DType element = WeightFormat{DType::kBF16, scheme}.element();
  stored->part = {.weight = {stored->elements.data(), element, {rows, row_bytes}, {}},
                  .scale = {stored->scales.data(), DType::kF32, {rows, blocks}, {}},
                  .scheme = scheme};
  if (scheme.zero_points) {
    stored->part.zero = {stored->zeros.data(), element, {rows, blocks}, {}};
  }
  for (int64_t i = 0; i < cols; ++i) {
    stored->input_factors.push_back(std::ldexp(1.0f, static_cast<int>(rng() % 3) - 1));
    stored->input_order.push_back(static_cast<int32_t>(i));
  }
  std::shuffle(stored->input_order.begin(), stored->input_order.end(), rng);
  if (scheme.input_factors) {
    stored->part.input_factors = {stored->input_factors.data(), DType::kF32, {cols}, {}};
  }
  if (scheme.input_order) {
    stored->part.input_order = {stored->input_order.data(), DType::kI32, {cols}, {}};
  }
  return stored;
}

// What is done to the inputs is done for all parts of a weight.
void TakeInputsOf(const StoredPart& from, StoredPart& to) {
  to.part.input_factors = from.part.input_factors;
  to.part.input_order = from.part.input_order;
}

class LinearQuantizedCudaTest : public OpTest {
 protected:
  static QuantScheme Int8(Inputs inputs) {
    return {.element = Element::kInt8, .block_rows = 1, .inputs = inputs};
  }
  // Whether products of so many rows round them.
  bool MayRound(const QuantScheme& scheme, int64_t rows) const {
    return scheme.inputs != Inputs::kPlain && rows > 16 && !GetParam().batch_invariant;
  }
  static std::vector<QuantScheme> Schemes() {
    std::vector<QuantScheme> schemes = {{.element = Element::kInt8, .block_rows = 1},
                                        Int8(Inputs::kDynamic)};
    for (const int64_t columns : {0, 32, 64, 128, 256}) {
      for (const bool zeros : {false, true}) {
        schemes.push_back({.element = Element::kInt4,
                           .block_rows = 1,
                           .block_columns = columns,
                           .zero_points = zeros});
      }
    }
    const QuantScheme groups = {
        .element = Element::kInt4, .block_rows = 1, .block_columns = 128, .zero_points = true};
    QuantScheme ordered = groups, scaled = groups, both = Int8(Inputs::kDynamic);
    ordered.input_order = scaled.input_factors = true;
    both.input_order = both.input_factors = true;
    schemes.insert(schemes.end(), {ordered, scaled, both});
    return schemes;
  }
  static std::vector<double> Widened(const LinearPart& part) {
    std::vector<double> values;
    std::vector<float> row(static_cast<size_t>(part.cols()));
    for (int64_t i = 0; i < part.rows(); ++i) {
      WidenRow(part, i, row.data());
      values.insert(values.end(), row.begin(), row.end());
    }
    return values;
  }
  std::vector<double> Product(const Tensor& x, const std::vector<double>& w) {
    const std::vector<double> a = Doubles(x);
    const auto cols = static_cast<size_t>(x.dim(1));
    std::vector<double> out;
    for (size_t row = 0; row < a.size() / cols; ++row) {
      for (size_t output = 0; output < w.size() / cols; ++output) {
        double sum = 0.0;
        for (size_t i = 0; i < cols; ++i) sum += a[row * cols + i] * w[output * cols + i];
        out.push_back(sum);
      }
    }
    return out;
  }
  std::vector<std::byte> Run(const Tensor& x, const LinearWeight& weight, DType out_dtype) {
    const OwnedTensor out = Poisoned({x.dim(0), weight.rows}, out_dtype);
    ops().Linear(x, weight, out.tensor);
    return Bytes(out.tensor);
  }
  LinearWeight Pack(std::span<const LinearPart> parts, const QuantScheme& scheme) {
    return backend().PackLinear(parts, {dtype(), scheme}).value();
  }
};

TEST_P(LinearQuantizedCudaTest, MatchesReference) {
  struct Shape {
    int64_t cols, outputs;
  };
  for (const QuantScheme& scheme : Schemes()) {
    for (const Shape& shape : {Shape{64, 16}, Shape{32, 5}, Shape{98, 37}, Shape{1088, 130},
                               Shape{200, 49}, Shape{4160, 40}}) {
      SCOPED_TRACE(::testing::Message()
                   << DescribeScheme(scheme) << ", " << shape.cols << " x " << shape.outputs);
      const auto stored = MakePart(scheme, shape.outputs, shape.cols, 1);
      const LinearWeight weight = Pack({{stored->part}}, scheme);
      EXPECT_EQ(weight.scheme, scheme);
      const std::vector<double> w = Widened(stored->part);
      double largest = 0.0;
      for (const double value : w) largest = std::max(largest, std::abs(value));
      const double magnitude = largest * std::sqrt(static_cast<double>(shape.cols));
      const OwnedTensor all = Random({200, shape.cols}, dtype(), 2);
      const std::vector<double> expected = Product(all.tensor, w);
      for (const int64_t rows : {1, 2, 7, 8, 9, 16, 17, 40, 70, 200}) {
        if (MayRound(scheme, rows)) break;
        SCOPED_TRACE(::testing::Message() << rows << " rows");
        for (const DType out_dtype : {DType::kF32, dtype()}) {
          const OwnedTensor out = Poisoned({rows, shape.outputs}, out_dtype);
          ops().Linear(all.tensor.Rows(rows), weight, out.tensor);
          ExpectNear(Doubles(out.tensor),
                     {expected.begin(), expected.begin() + rows * shape.outputs},
                     Rounding(out_dtype) + 1e-5, magnitude);
        }
      }
    }
  }
}

// Many rows are rounded too, by their own largest values or by the calibrated scale; where they are
// not, the products are those of the rows themselves.
TEST_P(LinearQuantizedCudaTest, RoundsRowsToIntegersOrNotAtAll) {
  for (const float fixed : {0.0f, 0.0125f}) {
    const QuantScheme scheme = Int8(fixed == 0.0f ? Inputs::kDynamic : Inputs::kStatic);
    const auto stored = MakePart(scheme, 80, 1088, 17);
    const OwnedTensor bias = Random({80}, dtype(), 18);
    stored->part.bias = bias.tensor;
    LinearWeight weight = Pack({{stored->part}}, scheme);
    weight.input_scale = fixed;
    const std::vector<double> w = Widened(stored->part);
    for (const int64_t rows : {17, 64, 300}) {
      const OwnedTensor x = Random({rows, 1088}, dtype(), 19);
      std::vector<float> rounded;
      const std::vector<double> values = Doubles(x.tensor);
      for (auto row = values.begin(); row != values.end(); row += 1088) {
        float largest = 0.0f;
        for (auto at = row; at != row + 1088; ++at) {
          largest = std::max(largest, std::abs(static_cast<float>(*at)));
        }
        const float scale = fixed == 0.0f ? largest / 127.0f : fixed;
        const float inverse = 1.0f / scale;
        for (auto at = row; at != row + 1088; ++at) {
          const float element = std::nearbyint(static_cast<float>(*at) * inverse);
          rounded.push_back(std::clamp(element, -127.0f, 127.0f) * scale);
        }
      }
      const OwnedTensor kept = FromFloats({rows, 1088}, DType::kF32, rounded);
      std::vector<double> expected = Product(kept.tensor, w);
      std::vector<double> plain = Product(x.tensor, w);
      const std::vector<double> added = Doubles(bias.tensor);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += added[i % 80];
        plain[i] += added[i % 80];
      }
      for (const DType out_dtype : {DType::kF32, dtype()}) {
        const OwnedTensor out = Poisoned({rows, 80}, out_dtype);
        ops().Linear(x.tensor, weight, out.tensor);
        const std::vector<double> actual = Doubles(out.tensor);
        double off_rounded = 0.0, off_plain = 0.0;
        for (size_t i = 0; i < actual.size(); ++i) {
          off_rounded = std::max(off_rounded, std::abs(actual[i] - expected[i]));
          off_plain = std::max(off_plain, std::abs(actual[i] - plain[i]));
        }
        const bool rounds = off_rounded < off_plain;
        EXPECT_FALSE(rounds && GetParam().batch_invariant);
        ExpectNear(actual, rounds ? expected : plain, Rounding(out_dtype) + 1e-5, 100.0);
      }
    }
  }
}

TEST_P(LinearQuantizedCudaTest, PartsLieOneBelowTheOtherWithTheirBias) {
  for (const QuantScheme& scheme : Schemes()) {
    SCOPED_TRACE(DescribeScheme(scheme));
    const auto q = MakePart(scheme, 43, 192, 3);
    const auto k = MakePart(scheme, 10, 192, 4);
    TakeInputsOf(*q, *k);
    const OwnedTensor bias = Random({10}, dtype(), 5);
    k->part.bias = bias.tensor;
    const LinearWeight both = Pack({{q->part, k->part}}, scheme);
    EXPECT_EQ(both.rows, 53);
    const OwnedTensor x = Random({3, 192}, dtype(), 6);
    const std::vector<double> first = Product(x.tensor, Widened(q->part));
    std::vector<double> second = Product(x.tensor, Widened(k->part));
    for (size_t i = 0; i < second.size(); ++i) second[i] += Doubles(bias.tensor)[i % 10];
    std::vector<double> expected;
    for (int row = 0; row < 3; ++row) {
      expected.insert(expected.end(), first.begin() + row * 43, first.begin() + (row + 1) * 43);
      expected.insert(expected.end(), second.begin() + row * 10, second.begin() + (row + 1) * 10);
    }
    const OwnedTensor out = Poisoned({3, 53}, DType::kF32);
    ops().Linear(x.tensor, both, out.tensor);
    ExpectNear(Doubles(out.tensor), expected, 1e-4, 16.0);
  }
}

// The plan of the memory is what is taken, so no copy in 16 bits exists.
TEST_P(LinearQuantizedCudaTest, TakesTheBytesOfThePlan) {
  for (const QuantScheme& scheme : Schemes()) {
    for (const int64_t rows : {1, 16, 33, 512}) {
      for (const int64_t cols : {32, 98, 1024}) {
        const auto stored = MakePart(scheme, rows, cols, 7);
        const LinearWeight weight = Pack({{stored->part}}, scheme);
        const auto taken = static_cast<int64_t>(weight.data.bytes()) + weight.factor_bytes();
        EXPECT_EQ(taken, backend().PackedBytes(rows, cols, {dtype(), scheme}));
        if (rows >= 512 && cols >= 1024) {
          EXPECT_LT(taken, rows * cols * 5 / 4);
        }
      }
    }
  }
}

// Each group by its own largest value, on the device and from the host.
TEST_P(LinearQuantizedCudaTest, RoundsPlainWeights) {
  const int64_t rows = 37, cols = 200;
  const OwnedTensor w = Random({rows, cols}, dtype(), 8);
  std::vector<std::byte> bytes = Bytes(w.tensor);
  const Tensor on_host{bytes.data(), dtype(), w.tensor.shape, {}};
  const std::vector<double> exact = Doubles(w.tensor);
  std::vector<float> ones(static_cast<size_t>(cols * cols), 0.0f);
  for (int64_t i = 0; i < cols; ++i) ones[static_cast<size_t>(i * cols + i)] = 1.0f;
  const OwnedTensor unit = FromFloats({cols, cols}, dtype(), ones);
  for (const QuantScheme& scheme : Schemes()) {
    if (scheme.zero_points || scheme.input_factors) continue;
    SCOPED_TRACE(DescribeScheme(scheme));
    const LinearWeight weight = Pack({{LinearPart{.weight = w.tensor}}}, scheme);
    const LinearWeight same = Pack({{LinearPart{.weight = on_host}}}, scheme);
    // Row by row: larger products may round their inputs.
    std::vector<double> kept(static_cast<size_t>(rows * cols));
    for (int64_t col = 0; col < cols; ++col) {
      const Tensor x = unit.tensor.RowRange(col, 1);
      const OwnedTensor out = Poisoned({1, rows}, DType::kF32);
      ops().Linear(x, weight, out.tensor);
      const std::vector<double> column = Doubles(out.tensor);
      for (int64_t row = 0; row < rows; ++row) {
        kept[static_cast<size_t>(row * cols + col)] = column[static_cast<size_t>(row)];
      }
      ASSERT_EQ(Run(x, same, DType::kF32), Bytes(out.tensor));
    }
    const double most = scheme.element == Element::kInt8 ? 127.0 : 7.0;
    const int64_t width = scheme.block_columns == 0 ? cols : scheme.block_columns;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const auto at = [&](int64_t i) { return exact[static_cast<size_t>(row * cols + i)]; };
        double largest = 0.0;
        const int64_t first = col / width * width;
        for (int64_t i = first; i < std::min(first + width, cols); ++i) {
          largest = std::max(largest, std::abs(at(i)));
        }
        ASSERT_LE(std::abs(kept[static_cast<size_t>(row * cols + col)] - at(col)),
                  0.501 * largest / most)
            << row << ", " << col;
      }
    }
  }
}

TEST_P(LinearQuantizedCudaTest, GatedMlpIsItsPartsBitForBit) {
  struct Shape {
    int64_t width, cols;
  };
  for (const QuantScheme& scheme : Schemes()) {
    for (const Shape& shape :
         {Shape{136, 1088}, Shape{48, 192}, Shape{2048, 256}, Shape{4512, 128}, Shape{33, 64}}) {
      SCOPED_TRACE(::testing::Message() << DescribeScheme(scheme) << ", " << shape.width);
      const auto gate = MakePart(scheme, shape.width, shape.cols, 9);
      const auto up = MakePart(scheme, shape.width, shape.cols, 10);
      TakeInputsOf(*gate, *up);
      const OwnedTensor up_bias = Random({shape.width}, dtype(), 11);
      up->part.bias = up_bias.tensor;
      const LinearWeight both = Pack({{gate->part, up->part}}, scheme);
      const OwnedTensor down = Random({shape.cols, shape.width}, dtype(), 12);
      const QuantScheme kept =
          scheme.element == Element::kInt8 ? Int8(scheme.inputs) : QuantScheme{};
      const LinearWeight last = Pack({{LinearPart{.weight = down.tensor}}}, kept);
      for (const int64_t rows : {1, 7, 9, 16, 20}) {
        const OwnedTensor x = Random({rows, shape.cols}, dtype(), 13);
        const OwnedTensor gate_up = Poisoned({rows, 2 * shape.width}, dtype());
        const OwnedTensor activated = Poisoned({rows, shape.width}, dtype());
        const OwnedTensor fused = Poisoned({rows, shape.cols}, dtype());
        ops().Mlp(x.tensor, both, Activation::kSilu, last, gate_up.tensor, activated.tensor,
                  fused.tensor);
        ops().Linear(x.tensor, both, gate_up.tensor);
        ops().Activate(Activation::kSilu, gate_up.tensor, activated.tensor);
        EXPECT_EQ(Bytes(fused.tensor), Run(activated.tensor, last, dtype())) << rows << " rows";
      }
    }
  }
}

TEST_P(LinearQuantizedCudaTest, NaNStaysInItsRow) {
  for (const QuantScheme& scheme : Schemes()) {
    const auto stored = MakePart(scheme, 32, 64, 14);
    const LinearWeight weight = Pack({{stored->part}}, scheme);
    for (const int64_t rows : {9, 64}) {
      std::vector<float> values(static_cast<size_t>(rows) * 64, 1.0f);
      values[7 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
      const OwnedTensor x = FromFloats({rows, 64}, dtype(), values);
      const OwnedTensor out = Poisoned({rows, 32}, dtype());
      ops().Linear(x.tensor, weight, out.tensor);
      const std::vector<double> result = Doubles(out.tensor);
      for (size_t i = 0; i < result.size(); ++i) {
        EXPECT_EQ(std::isnan(result[i]), i / 32 == 7) << DescribeScheme(scheme) << ", " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearQuantizedCudaTest,
                         ::testing::ValuesIn(OnCuda(AllBackendCases())), CaseName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearQuantizedCudaTest);

class LinearQuantizedInvarianceCudaTest : public LinearQuantizedCudaTest {};

TEST_P(LinearQuantizedInvarianceCudaTest, RowDoesNotDependOnTheOthers) {
  struct Shape {
    int64_t cols, outputs;
  };
  for (const QuantScheme& scheme : Schemes()) {
    for (const Shape& shape :
         {Shape{1100, 200}, Shape{1152, 200}, Shape{4672, 72}, Shape{1088, 9700}}) {
      const auto stored = MakePart(scheme, shape.outputs, shape.cols, 15);
      const LinearWeight weight = Pack({{stored->part}}, scheme);
      const OwnedTensor x = Random({515, shape.cols}, dtype(), 16);
      for (const DType out_dtype : {DType::kF32, dtype()}) {
        const std::vector<std::byte> all = Run(x.tensor, weight, out_dtype);
        const size_t row_bytes = static_cast<size_t>(shape.outputs) * SizeOf(out_dtype);
        for (const int64_t rows : {1, 3, 8, 9, 16, 17, 32, 33, 64, 65, 200, 512}) {
          const std::vector<std::byte> some = Run(x.tensor.Rows(rows), weight, out_dtype);
          ASSERT_EQ(std::memcmp(some.data(), all.data(), static_cast<size_t>(rows) * row_bytes), 0)
              << DescribeScheme(scheme) << ", " << shape.cols << " x " << shape.outputs << ", "
              << rows << " rows";
        }
        const std::vector<std::byte> alone = Run(x.tensor.RowRange(511, 1), weight, out_dtype);
        ASSERT_EQ(std::memcmp(alone.data(), all.data() + 511 * row_bytes, row_bytes), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearQuantizedInvarianceCudaTest,
                         ::testing::ValuesIn(Invariant(OnCuda(AllBackendCases()))), CaseName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearQuantizedInvarianceCudaTest);

}  // namespace
}  // namespace tandem::ops
