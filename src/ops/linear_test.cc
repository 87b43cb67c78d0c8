// Linear on every backend: against a double-precision reference, and bit for bit against itself
// with other row counts.
#include <cmath>

#include "ops/op_test.h"

namespace tandem::ops {
namespace {

struct LinearShape {
  int64_t rows, cols, outputs;
};

class LinearTest : public OpTest {
 protected:
  std::vector<double> Reference(const Tensor& x, const Tensor& weight,
                                const std::vector<double>& bias) {
    const std::vector<double> a = Doubles(x);
    const std::vector<double> w = Doubles(weight);
    const int64_t cols = x.dim(1);
    std::vector<double> out;
    for (int64_t row = 0; row < x.dim(0); ++row) {
      for (int64_t output = 0; output < weight.dim(0); ++output) {
        double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(output)];
        for (int64_t i = 0; i < cols; ++i) {
          sum += a[static_cast<size_t>(row * cols + i)] * w[static_cast<size_t>(output * cols + i)];
        }
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
};

TEST_P(LinearTest, MatchesReference) {
  const LinearShape shapes[] = {{1, 1, 1},     {1, 32, 16},   {1, 2048, 96}, {2, 31, 15},
                                {3, 33, 17},   {4, 64, 129},  {5, 7, 64},    {7, 100, 130},
                                {12, 320, 48}, {13, 257, 33}, {17, 96, 80},  {40, 1056, 70},
                                {64, 130, 16}, {130, 70, 31}, {515, 40, 33}};
  for (const LinearShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message()
                 << shape.rows << " x " << shape.cols << " x " << shape.outputs);
    const OwnedTensor x = Random({shape.rows, shape.cols}, dtype(), 1);
    const OwnedTensor w = Random({shape.outputs, shape.cols}, dtype(), 2);
    const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, dtype()).value();
    const std::vector<double> expected = Reference(x.tensor, w.tensor, {});
    const double magnitude = std::sqrt(static_cast<double>(shape.cols));
    for (const DType out_dtype : {DType::kF32, dtype()}) {
      const OwnedTensor out = Poisoned({shape.rows, shape.outputs}, out_dtype);
      ops().Linear(x.tensor, weight, out.tensor);
      // The sum's own error grows with its length; rounding the result adds the rest.
      const double sum_error = 0x1p-23 * magnitude;
      ExpectNear(Doubles(out.tensor), expected, Rounding(out_dtype) + sum_error, magnitude);
    }
  }
}

TEST_P(LinearTest, RowDoesNotDependOnTheOthers) {
  // Crosses the kernels' blocks of inputs and their row counts.
  const int64_t cols = 1100, outputs = 200, most = 515;
  const OwnedTensor x = Random({most, cols}, dtype(), 3);
  const OwnedTensor w = Random({outputs, cols}, dtype(), 4);
  const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, dtype()).value();
  for (const DType out_dtype : {DType::kF32, dtype()}) {
    const std::vector<std::byte> all = Run(x.tensor, weight, out_dtype);
    const size_t row_bytes = outputs * SizeOf(out_dtype);
    for (const int64_t rows :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 32, 33, 64, 200, 512}) {
      const std::vector<std::byte> some = Run(x.tensor.Rows(rows), weight, out_dtype);
      ASSERT_EQ(std::memcmp(some.data(), all.data(), static_cast<size_t>(rows) * row_bytes), 0)
          << rows << " rows";
    }
    // One row alone, taken from anywhere.
    for (const int64_t row : {5, 63, 511, 514}) {
      Tensor one = x.tensor.Rows(1);
      one.data = static_cast<std::byte*>(x.tensor.data) + row * one.NumBytes();
      const std::vector<std::byte> alone = Run(one, weight, out_dtype);
      ASSERT_EQ(
          std::memcmp(alone.data(), all.data() + static_cast<size_t>(row) * row_bytes, row_bytes),
          0)
          << "row " << row;
    }
  }
}

TEST_P(LinearTest, BiasIsAddedBeforeRounding) {
  const OwnedTensor x = Random({9, 70}, dtype(), 5);
  const OwnedTensor w = Random({37, 70}, dtype(), 6);
  const OwnedTensor bias = Random({37}, dtype(), 7, 10.0f);
  const LinearWeight weight = backend().PackLinear({{{w.tensor, bias.tensor}}}, dtype()).value();
  const OwnedTensor out = Poisoned({9, 37}, dtype());
  ops().Linear(x.tensor, weight, out.tensor);
  ExpectNear(Doubles(out.tensor), Reference(x.tensor, w.tensor, Doubles(bias.tensor)),
             Rounding(dtype()) + 1e-6, 10.0);
}

TEST_P(LinearTest, PartsLieOneBelowTheOther) {
  const OwnedTensor q = Random({40, 64}, dtype(), 8);
  const OwnedTensor k = Random({8, 64}, dtype(), 9);
  const OwnedTensor k_bias = Random({8}, dtype(), 10);
  const OwnedTensor x = Random({3, 64}, dtype(), 11);
  const LinearWeight both =
      backend().PackLinear({{{q.tensor}, {k.tensor, k_bias.tensor}}}, dtype()).value();
  EXPECT_EQ(both.rows, 48);
  std::vector<double> expected = Reference(x.tensor, q.tensor, {});
  const std::vector<double> k_rows = Reference(x.tensor, k.tensor, Doubles(k_bias.tensor));
  for (int row = 2; row >= 0; --row) {
    expected.insert(expected.begin() + (row + 1) * 40, k_rows.begin() + row * 8,
                    k_rows.begin() + (row + 1) * 8);
  }
  const OwnedTensor out = Poisoned({3, 48}, DType::kF32);
  ops().Linear(x.tensor, both, out.tensor);
  ExpectNear(Doubles(out.tensor), expected, 1e-5, 8.0);
}

TEST_P(LinearTest, PackedBytesAreWhatThePlanSays) {
  for (const int64_t rows : {1, 16, 33}) {
    for (const int64_t cols : {1, 31, 64}) {
      const OwnedTensor w = Random({rows, cols}, dtype(), 12);
      const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, dtype()).value();
      EXPECT_EQ(static_cast<int64_t>(weight.data.bytes()),
                backend().PackedBytes(rows, cols, dtype()));
    }
  }
}

// A NaN or an infinity stays in its own row and output.
TEST_P(LinearTest, NaNStaysInItsRow) {
  std::vector<float> values(20 * 64, 1.0f);
  values[7 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const OwnedTensor x = FromFloats({20, 64}, dtype(), values);
  const OwnedTensor w = Random({24, 64}, dtype(), 13);
  const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, dtype()).value();
  const OwnedTensor out = Poisoned({20, 24}, dtype());
  ops().Linear(x.tensor, weight, out.tensor);
  const std::vector<double> result = Doubles(out.tensor);
  for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(std::isnan(result[i]), i / 24 == 7) << i;
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, ::testing::ValuesIn(AllBackendCases()), CaseName);

}  // namespace
}  // namespace tandem::ops
