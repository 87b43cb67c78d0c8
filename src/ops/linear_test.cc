// Linear on every backend: compared with a double-precision reference, and bit for bit with other
// row counts.
#include <algorithm>
#include <cmath>

#include "ops/testing/product_test.h"

namespace tandem::ops {
namespace {

class LinearTest : public ProductTest {};

TEST_P(LinearTest, MatchesReference) {
  const LinearShape shapes[] = {
      {1, 1, 1},      {1, 32, 16},   {1, 2048, 96}, {2, 31, 15},   {3, 33, 17},    {4, 64, 129},
      {5, 7, 64},     {7, 100, 130}, {12, 320, 48}, {13, 257, 33}, {17, 96, 80},   {40, 1056, 70},
      {64, 130, 16},  {130, 70, 31}, {515, 40, 33}, {20, 72, 40},  {64, 256, 136}, {150, 1040, 256},
      {36, 4200, 35}, {1, 4672, 40}, {11, 4672, 50}};
  for (const LinearShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message()
                 << shape.rows << " x " << shape.cols << " x " << shape.outputs);
    const OwnedTensor x = Random({shape.rows, shape.cols}, dtype(), 1);
    const OwnedTensor w = Random({shape.outputs, shape.cols}, dtype(), 2);
    const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, {dtype()}).value();
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

class LinearInvarianceTest : public LinearTest {};

TEST_P(LinearInvarianceTest, RowDoesNotDependOnTheOthers) {
  // Crosses the kernels' blocks of inputs and their row counts; with whole vectors and without.
  const int64_t outputs = 200, most = 515;
  for (const int64_t cols : {1100, 2608}) {
    const OwnedTensor x = Random({most, cols}, dtype(), 3);
    const OwnedTensor w = Random({outputs, cols}, dtype(), 4);
    const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, {dtype()}).value();
    ExpectRowsStandAlone(x.tensor, weight);
  }
}

// Too large for the caches, where few rows may read the weights in another order.
TEST_P(LinearInvarianceTest, RowOfALargeWeightDoesNotDependOnTheOthers) {
  const int64_t cols = 2048, outputs = 2200, row_bytes = outputs * 4;
  const OwnedTensor x = Random({20, cols}, dtype(), 8);
  const OwnedTensor w = Random({outputs, cols}, dtype(), 9);
  const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, {dtype()}).value();
  const OwnedTensor out = Poisoned({20, outputs}, DType::kF32);
  ops().Linear(x.tensor, weight, out.tensor);
  const std::vector<std::byte> all = Bytes(out.tensor);
  for (const int64_t rows : {1, 4, 5, 16}) {
    const OwnedTensor some = Poisoned({rows, outputs}, DType::kF32);
    ops().Linear(x.tensor.Rows(rows), weight, some.tensor);
    EXPECT_EQ(
        std::memcmp(Bytes(some.tensor).data(), all.data(), static_cast<size_t>(rows * row_bytes)),
        0)
        << rows << " rows";
  }
}

TEST_P(LinearTest, BiasIsAddedBeforeRounding) {
  for (const LinearShape& shape : {LinearShape{9, 70, 37}, LinearShape{70, 80, 48}}) {
    const OwnedTensor x = Random({shape.rows, shape.cols}, dtype(), 5);
    const OwnedTensor w = Random({shape.outputs, shape.cols}, dtype(), 6);
    const OwnedTensor bias = Random({shape.outputs}, dtype(), 7, 10.0f);
    const LinearWeight weight =
        backend().PackLinear({{{w.tensor, bias.tensor}}}, {dtype()}).value();
    const std::vector<double> expected = Reference(x.tensor, w.tensor, Doubles(bias.tensor));
    for (const DType out_dtype : {DType::kF32, dtype()}) {
      const OwnedTensor out = Poisoned({shape.rows, shape.outputs}, out_dtype);
      ops().Linear(x.tensor, weight, out.tensor);
      ExpectNear(Doubles(out.tensor), expected, Rounding(out_dtype) + 1e-6, 10.0);
    }
  }
}

TEST_P(LinearTest, PartsLieOneBelowTheOther) {
  const OwnedTensor q = Random({40, 64}, dtype(), 8);
  const OwnedTensor k = Random({8, 64}, dtype(), 9);
  const OwnedTensor k_bias = Random({8}, dtype(), 10);
  const OwnedTensor x = Random({3, 64}, dtype(), 11);
  const LinearWeight both =
      backend().PackLinear({{{q.tensor}, {k.tensor, k_bias.tensor}}}, {dtype()}).value();
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

TEST_P(LinearTest, PackedBytesMatchThePlan) {
  for (const int64_t rows : {1, 16, 33}) {
    for (const int64_t cols : {1, 31, 64}) {
      const OwnedTensor w = Random({rows, cols}, dtype(), 12);
      const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, {dtype()}).value();
      EXPECT_EQ(static_cast<int64_t>(weight.data.bytes()),
                backend().PackedBytes(rows, cols, {dtype()}));
    }
  }
}

// In warm-up a backend may compute a product in several ways; the fastest stays. Many inputs for
// few outputs: dividing the sums may be faster there.
TEST_P(LinearTest, MatchesReferenceInAndAfterWarmUp) {
  for (const LinearShape& shape : {LinearShape{512, 256, 136}, LinearShape{64, 4096, 128}}) {
    const OwnedTensor x = Random({shape.rows, shape.cols}, dtype(), 37);
    const OwnedTensor w = Random({shape.outputs, shape.cols}, dtype(), 38);
    const OwnedTensor bias = Random({shape.outputs}, dtype(), 39);
    const LinearWeight weight =
        backend().PackLinear({{{w.tensor, bias.tensor}}}, {dtype()}).value();
    const std::vector<double> expected = Reference(x.tensor, w.tensor, Doubles(bias.tensor));
    const double magnitude = std::sqrt(static_cast<double>(shape.cols));
    const auto run = [&] {
      for (const int64_t rows : {1, 16, 17, 24, 64, 100, 256, 512}) {
        if (rows > shape.rows) break;
        SCOPED_TRACE(::testing::Message() << rows << " rows");
        for (const DType out_dtype : {DType::kF32, dtype()}) {
          const OwnedTensor out = Poisoned({rows, shape.outputs}, out_dtype);
          ops().Linear(x.tensor.Rows(rows), weight, out.tensor);
          ExpectNear(Doubles(out.tensor),
                     {expected.begin(), expected.begin() + rows * shape.outputs},
                     Rounding(out_dtype) + 0x1p-23 * magnitude, magnitude);
        }
      }
    };
    backend().WarmUp(run);
    run();
  }
}

// A NaN or an infinity stays in its own row and output.
TEST_P(LinearTest, NaNStaysInItsRow) {
  std::vector<float> values(20 * 64, 1.0f);
  values[7 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const OwnedTensor x = FromFloats({20, 64}, dtype(), values);
  const OwnedTensor w = Random({24, 64}, dtype(), 13);
  const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, {dtype()}).value();
  const OwnedTensor out = Poisoned({20, 24}, dtype());
  ops().Linear(x.tensor, weight, out.tensor);
  const std::vector<double> result = Doubles(out.tensor);
  for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(std::isnan(result[i]), i / 24 == 7) << i;
}

TEST_P(LinearTest, GatedMlpIsItsPartsBitForBit) {
  for (const LinearShape& shape :
       {LinearShape{1, 64, 36}, LinearShape{7, 1040, 136}, LinearShape{7, 1088, 136},
        LinearShape{16, 192, 24}, LinearShape{20, 64, 40}, LinearShape{3, 50, 17},
        LinearShape{17, 64, 2064}, LinearShape{515, 33, 2048}, LinearShape{40, 544, 2208}}) {
    ExpectGatedMlpIsItsParts(shape.outputs, shape.cols, {dtype()}, {shape.rows});
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, ::testing::ValuesIn(AllBackendCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, LinearInvarianceTest,
                         ::testing::ValuesIn(Invariant(AllBackendCases())), CaseName);

}  // namespace
}  // namespace tandem::ops
