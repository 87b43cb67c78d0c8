// Linear with quantized weights of every kind on every instruction set of the CPU: compared with a
// double-precision reference made of WidenRow's weights, and bit for bit with other row counts.
#include <algorithm>
#include <cmath>

#include "ops/testing/product_test.h"
#include "ops/testing/random_part.h"

namespace tandem::ops {
namespace {

using Scheme = QuantScheme;
using Element = QuantScheme::Element;
using Inputs = QuantScheme::Inputs;

std::vector<BackendCase> OnCpu(std::vector<BackendCase> cases) {
  std::erase_if(cases, [](const BackendCase& one) { return one.name.starts_with("cuda"); });
  return cases;
}

std::vector<Scheme> Schemes() {
  return {
      {.element = Element::kFp8E4M3, .block_rows = 1},
      {.element = Element::kFp8E4M3, .block_rows = 1, .inputs = Inputs::kStatic},
      {.element = Element::kFp8E4M3, .block_rows = 128, .block_columns = 128},
      {.element = Element::kFp8E4M3, .block_rows = 16, .block_columns = 32},
      {.element = Element::kInt8, .block_rows = 1},
      {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic},
      {.element = Element::kInt8,
       .block_rows = 1,
       .input_factors = true,
       .inputs = Inputs::kStatic},
      {.element = Element::kInt8, .block_rows = 1, .block_columns = 64, .inputs = Inputs::kDynamic},
      {.element = Element::kInt8, .block_rows = 1, .block_columns = 128, .zero_points = true},
      {.element = Element::kInt8,
       .block_rows = 1,
       .zero_points = true,
       .input_order = true,
       .inputs = Inputs::kDynamic},
      {.element = Element::kInt8,
       .block_rows = 1,
       .block_columns = 32,
       .input_order = true,
       .inputs = Inputs::kDynamic},
      {.element = Element::kInt4, .block_rows = 1, .block_columns = 32},
      {.element = Element::kInt4, .block_rows = 1, .block_columns = 64, .inputs = Inputs::kStatic},
      {.element = Element::kInt4, .block_rows = 1, .block_columns = 128},
      {.element = Element::kInt4, .block_rows = 1, .block_columns = 256, .zero_points = true},
      {.element = Element::kInt4, .block_rows = 1, .block_columns = 48},
      {.element = Element::kInt4, .block_rows = 1},
      {.element = Element::kInt4, .block_rows = 1, .zero_points = true},
      {.element = Element::kInt4, .block_rows = 1, .block_columns = 128, .input_factors = true},
      {.element = Element::kInt4, .block_rows = 1, .block_columns = 128, .input_order = true},
      {.element = Element::kInt4,
       .block_rows = 1,
       .block_columns = 64,
       .zero_points = true,
       .input_factors = true,
       .input_order = true},
      {.element = Element::kFp4E2M1, .block_rows = 1, .block_columns = 16},
      {.element = Element::kFp4E2M1, .block_rows = 1, .block_columns = 32},
  };
}

std::vector<float> Widened(const LinearPart& part) {
  std::vector<float> weights(static_cast<size_t>(part.rows() * part.cols()));
  for (int64_t row = 0; row < part.rows(); ++row) {
    WidenRow(part, row, weights.data() + row * part.cols());
  }
  return weights;
}

class LinearQuantizedTest : public ProductTest {
 protected:
  // What the largest input of a group becomes beside integer weights, where the instruction set has
  // products of integers; 0: inputs are not rounded.
  int LargestInput(const Scheme& scheme) const {
    const bool can =
        GetParam().name.starts_with("avx512_bf16") || GetParam().name.starts_with("amx");
    const bool int8 = scheme.element == Element::kInt8;
    if (!can || (!int8 && scheme.element != Element::kInt4)) return 0;
    if (int8 && scheme.inputs != Inputs::kPlain && !scheme.zero_points) return 127;
    if (dtype() != DType::kBF16) return 0;
    return int8 ? 127 * 256 + 127 : 127 * 16 + 7;
  }
  // Groups of one length, in whole tiles of 64: of at most 1,024 inputs of int8 with one scale. No
  // other group is longer than 128.
  static size_t GroupInputs(const Scheme& scheme, size_t cols) {
    if (scheme.block_columns > 0) return std::min<size_t>(128, scheme.block_columns);
    const size_t most = scheme.element == Element::kInt8 ? 1024 : 128;
    const size_t groups = (cols + most - 1) / most;
    return ((cols + groups - 1) / groups + 63) / 64 * 64;
  }
  // A row of x as the kernels round it, group by group.
  void RoundInputs(const Scheme& scheme, const LinearPart& part, std::vector<float>& x) const {
    std::vector<float> sorted(x.size());
    const auto column = [&](size_t i) {
      return scheme.input_order ? static_cast<size_t>(part.input_order.As<int32_t>()[i]) : i;
    };
    const auto factor = [&](size_t i) {
      return scheme.input_factors ? part.input_factors.As<float>()[i] : 1.0f;
    };
    for (size_t i = 0; i < x.size(); ++i) sorted[i] = x[column(i)] * factor(column(i));
    const int most = LargestInput(scheme);
    const size_t width = GroupInputs(scheme, x.size());
    for (size_t begin = 0; begin < x.size(); begin += width) {
      const size_t end = std::min(begin + width, x.size());
      float largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(sorted[i]));
      for (size_t i = begin; i < end; ++i) {
        const float parts = std::nearbyint(sorted[i] * (static_cast<float>(most) / largest));
        x[column(i)] = parts * (largest / static_cast<float>(most)) / factor(column(i));
      }
    }
  }

  // The product with WidenRow's weights, for inputs that are rounded as the kernels may.
  void ExpectProduct(const Tensor& x, const LinearPart& part, const LinearWeight& weight,
                     int64_t first_output, DType out_dtype) {
    const OwnedTensor out = Poisoned({x.dim(0), weight.rows}, out_dtype);
    ops().Linear(x, weight, out.tensor);
    const std::vector<double> actual = Doubles(out.tensor);
    const std::vector<double> inputs = Doubles(x);
    const std::vector<float> weights = Widened(part);
    const auto cols = static_cast<size_t>(part.cols());
    // Of bf16, an input times its factor is rounded to bf16.
    const bool factors = part.scheme.input_factors && dtype() == DType::kBF16;
    const double input_error = factors && LargestInput(part.scheme) == 0 ? 0x1p-7 : 0x1p-20;
    for (int64_t row = 0; row < x.dim(0); ++row) {
      const auto* first = inputs.data() + row * part.cols();
      std::vector<float> values(first, first + cols);
      if (LargestInput(part.scheme) > 0) RoundInputs(part.scheme, part, values);
      for (int64_t output = 0; output < part.rows(); ++output) {
        const float* w = weights.data() + output * part.cols();
        double sum = 0, squares = 0;
        for (size_t i = 0; i < cols; ++i) {
          sum += double{values[i]} * w[i];
          squares += std::pow(first[i] * w[i], 2);
        }
        const double result =
            actual[static_cast<size_t>(row * weight.rows + first_output + output)];
        const double bound = Rounding(out_dtype) * std::abs(sum) +
                             (input_error + 0x1p-19) * std::sqrt(squares) + 1e-7;
        ASSERT_TRUE(std::abs(result - sum) <= bound)
            << DescribeScheme(part.scheme) << ", row " << row << ", output " << output << ": "
            << result << ", expected " << sum << " within " << bound;
      }
    }
  }

  int64_t BytesOf(const LinearWeight& weight) const {
    return static_cast<int64_t>(weight.data.bytes()) + weight.factor_bytes();
  }
};

TEST_P(LinearQuantizedTest, MatchesTheWidenedWeights) {
  for (const Scheme& scheme : Schemes()) {
    for (const auto& [outputs, cols] :
         {std::pair<int64_t, int64_t>{37, 384}, {80, 300}, {1, 16}, {20, 1104}}) {
      const OwnedPart owned = RandomPart(scheme, outputs, cols, 1);
      const WeightFormat kept{dtype(), backend().KeptScheme(scheme)};
      ASSERT_EQ(kept.scheme, scheme);
      const LinearWeight weight = backend().PackLinear({{owned.part}}, kept).value();
      EXPECT_EQ(weight.scheme, scheme);
      EXPECT_EQ(BytesOf(weight), backend().PackedBytes(outputs, cols, kept));
      for (const int64_t rows : {1, 2, 5, 12, 30}) {
        const OwnedTensor x = Random({rows, cols}, dtype(), 2);
        for (const DType out_dtype : {DType::kF32, dtype()}) {
          ExpectProduct(x.tensor, owned.part, weight, 0, out_dtype);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

// No copy of 16 bits: of 4 bits with a scale for 128 weights, a weight takes 4.25 bits.
TEST_P(LinearQuantizedTest, KeepsNothingButTheElementsAndTheirScales) {
  const WeightFormat int4{dtype(),
                          {.element = Element::kInt4, .block_rows = 1, .block_columns = 128}};
  const WeightFormat int8{dtype(), {.element = Element::kInt8, .block_rows = 1}};
  EXPECT_EQ(backend().PackedBytes(256, 1024, int4), 256 * 1024 * 17 / 32);
  EXPECT_EQ(backend().PackedBytes(256, 1024, int8), 256 * 1024 + 256 * 4);
}

TEST_P(LinearQuantizedTest, PartsLieOneBelowTheOther) {
  for (const Scheme& scheme :
       {Scheme{.element = Element::kInt4, .block_rows = 1, .block_columns = 64},
        Scheme{.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic},
        Scheme{.element = Element::kFp8E4M3, .block_rows = 1}}) {
    const OwnedPart first = RandomPart(scheme, 21, 128, 3);
    const OwnedPart second = RandomPart(scheme, 40, 128, 4, true);
    const LinearWeight weight =
        backend().PackLinear({{first.part, second.part}}, {dtype(), scheme}).value();
    const OwnedTensor x = Random({14, 128}, dtype(), 5);
    ExpectProduct(x.tensor, first.part, weight, 0, DType::kF32);
    ExpectProduct(x.tensor, second.part, weight, 21, DType::kF32);
  }
}

TEST_P(LinearQuantizedTest, BiasIsAddedToTheScaledSum) {
  const Scheme scheme{.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic};
  const OwnedPart owned = RandomPart(scheme, 37, 96, 6);
  const OwnedTensor bias = Random({37}, dtype(), 7, 10.0f);
  LinearPart with_bias = owned.part;
  with_bias.bias = bias.tensor;
  const LinearWeight without = backend().PackLinear({{owned.part}}, {dtype(), scheme}).value();
  const LinearWeight with = backend().PackLinear({{with_bias}}, {dtype(), scheme}).value();
  const OwnedTensor x = Random({3, 96}, dtype(), 8);
  const OwnedTensor sums = Poisoned({3, 37}, DType::kF32), biased = Poisoned({3, 37}, DType::kF32);
  ops().Linear(x.tensor, without, sums.tensor);
  ops().Linear(x.tensor, with, biased.tensor);
  std::vector<double> expected = Doubles(sums.tensor);
  const std::vector<double> added = Doubles(bias.tensor);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += added[i % 37];
  ExpectNear(Doubles(biased.tensor), expected, 1e-6, 1.0);
}

TEST_P(LinearQuantizedTest, RowDoesNotDependOnTheOthers) {
  const int64_t cols = 1104, outputs = 100;
  const OwnedTensor x = Random({515, cols}, dtype(), 9);
  for (const Scheme& scheme : Schemes()) {
    SCOPED_TRACE(DescribeScheme(scheme));
    const OwnedPart owned = RandomPart(scheme, outputs, cols, 10);
    const LinearWeight weight = backend().PackLinear({{owned.part}}, {dtype(), scheme}).value();
    const std::vector<std::byte> all = Run(x.tensor, weight, DType::kF32);
    const size_t row_bytes = static_cast<size_t>(outputs) * sizeof(float);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 17, 33, 200, 512}) {
      const std::vector<std::byte> some = Run(x.tensor.Rows(rows), weight, DType::kF32);
      ASSERT_EQ(std::memcmp(some.data(), all.data(), static_cast<size_t>(rows) * row_bytes), 0)
          << rows << " rows";
    }
    for (const int64_t row : {5, 63, 511, 514}) {
      const std::vector<std::byte> alone = Run(x.tensor.RowRange(row, 1), weight, DType::kF32);
      ASSERT_EQ(
          std::memcmp(alone.data(), all.data() + static_cast<size_t>(row) * row_bytes, row_bytes),
          0)
          << "row " << row;
    }
  }
}

// The blocks of few rows grow with the outputs.
TEST_P(LinearQuantizedTest, RowDoesNotDependOnTheOthersWithManyOutputs) {
  // More steps than are on the way to a warp's memory at a time, and not equally many for each.
  const int64_t cols = 2112, most = 40;
  const OwnedTensor x = Random({most, cols}, dtype(), 36);
  for (const Scheme& scheme :
       {Scheme{.element = Element::kInt4, .block_rows = 1, .block_columns = 64},
        Scheme{.element = Element::kInt8, .block_rows = 1}}) {
    for (const int64_t outputs : {2048, 4096, 4288, 8512, 9700, 17024}) {
      SCOPED_TRACE(DescribeScheme(scheme) + ", " + std::to_string(outputs) + " outputs");
      const OwnedPart owned = RandomPart(scheme, outputs, cols, 37);
      const LinearWeight weight = backend().PackLinear({{owned.part}}, {dtype(), scheme}).value();
      const std::vector<std::byte> all = Run(x.tensor, weight, DType::kF32);
      const size_t row_bytes = static_cast<size_t>(outputs) * sizeof(float);
      for (const int64_t rows : {1, 4, 8, 9, 16}) {
        const std::vector<std::byte> some = Run(x.tensor.Rows(rows), weight, DType::kF32);
        ASSERT_EQ(std::memcmp(some.data(), all.data(), static_cast<size_t>(rows) * row_bytes), 0)
            << rows << " rows";
      }
    }
  }
}

TEST_P(LinearQuantizedTest, GatedMlpIsItsPartsBitForBit) {
  for (const Scheme& scheme :
       {Scheme{.element = Element::kInt4, .block_rows = 1, .block_columns = 128},
        Scheme{.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic}}) {
    for (const auto& [width, cols] :
         {std::pair<int64_t, int64_t>{2048, 96}, {2560, 128}, {8704, 128}}) {
      const OwnedPart gate = RandomPart(scheme, width, cols, 11);
      const OwnedPart up = RandomPart(scheme, width, cols, 12);
      const OwnedPart down = RandomPart(scheme, cols, width, 13);
      const WeightFormat kept{dtype(), scheme};
      const LinearWeight both = backend().PackLinear({{gate.part, up.part}}, kept).value();
      const LinearWeight last = backend().PackLinear({{down.part}}, kept).value();
      for (const int64_t rows : {7, 16, 40}) {
        const OwnedTensor x = Random({rows, cols}, dtype(), 14, 0.2f);
        ExpectMlpIsItsParts(x.tensor, both, last);
      }
    }
  }
}

TEST_P(LinearQuantizedTest, NaNStaysInItsRow) {
  for (const Scheme& scheme : Schemes()) {
    const OwnedPart owned = RandomPart(scheme, 24, 64, 15);
    const LinearWeight weight = backend().PackLinear({{owned.part}}, {dtype(), scheme}).value();
    std::vector<float> values(20 * 64, 1.0f);
    values[7 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
    const OwnedTensor x = FromFloats({20, 64}, dtype(), values);
    const OwnedTensor out = Poisoned({20, 24}, dtype());
    ops().Linear(x.tensor, weight, out.tensor);
    const std::vector<double> result = Doubles(out.tensor);
    for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(std::isnan(result[i]), i / 24 == 7) << i;
  }
}

// The weights of plain ones, by products with unit vectors.
TEST_P(LinearQuantizedTest, RoundsPlainWeightsWithinHalfAStep) {
  const int64_t outputs = 21, cols = 208;
  struct Step {
    Scheme scheme;
    double relative, absolute;  // of the value, and of the largest in its block
  };
  for (const Step& step :
       {Step{Fp8Scheme(Inputs::kDynamic), 0x1p-4, 0x1p-18},
        Step{
            {.element = Element::kInt8, .block_rows = 1, .inputs = Inputs::kDynamic}, 0, 0.5 / 127},
        Step{{.element = Element::kInt4, .block_rows = 1, .block_columns = 128}, 0, 1.0 / 8}}) {
    const OwnedTensor w = Random({outputs, cols}, dtype(), 16);
    std::vector<double> exact = Doubles(w.tensor);
    const WeightFormat kept{dtype(), step.scheme};
    const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, kept).value();
    EXPECT_EQ(BytesOf(weight), backend().PackedBytes(outputs, cols, kept));
    std::vector<float> unit(cols * cols);
    for (size_t i = 0; i < cols; ++i) unit[i * cols + i] = 1.0f;
    const OwnedTensor x = FromFloats({cols, cols}, dtype(), unit);
    const OwnedTensor out = Poisoned({cols, outputs}, DType::kF32);
    ops().Linear(x.tensor, weight, out.tensor);
    const std::vector<double> columns = Doubles(out.tensor);
    const int64_t width = step.scheme.block_columns == 0 ? cols : step.scheme.block_columns;
    for (int64_t row = 0; row < outputs; ++row) {
      for (int64_t first = 0; first < cols; first += width) {
        const auto begin = exact.begin() + row * cols + first;
        const int64_t count = std::min(width, cols - first);
        double largest = 0;
        std::for_each_n(begin, count,
                        [&](double value) { largest = std::max(largest, std::abs(value)); });
        for (int64_t i = 0; i < count; ++i) {
          const double bound =
              std::max(step.relative * std::abs(begin[i]), step.absolute * largest);
          ASSERT_NEAR(columns[static_cast<size_t>((first + i) * outputs + row)], begin[i],
                      1.001 * bound + 1e-6)
              << DescribeScheme(step.scheme);
        }
      }
    }
  }
}

// Sums of integers are exact, so that the tile unit may leave few rows to the vector unit.
TEST_P(LinearQuantizedTest, RoundedProductsAreTheSameInTilesAndVectors) {
  if (!GetParam().name.starts_with("amx")) return;
  CpuOptions options;
  options.isa = "avx512_bf16";
  options.num_threads = 1;
  const std::unique_ptr<Backend> vectors = MakeCpuBackend(options).value();
  for (const Scheme& scheme : Schemes()) {
    if (LargestInput(scheme) == 0) continue;
    SCOPED_TRACE(DescribeScheme(scheme));
    const OwnedPart owned = RandomPart(scheme, 100, 2304, 18);
    const LinearWeight tiles = backend().PackLinear({{owned.part}}, {dtype(), scheme}).value();
    const LinearWeight same = vectors->PackLinear({{owned.part}}, {dtype(), scheme}).value();
    for (const int64_t rows : {3, 7, 16, 45}) {
      const OwnedTensor x = Random({rows, 2304}, dtype(), 19);
      const OwnedTensor out = Poisoned({rows, 100}, DType::kF32);
      vectors->ops().Linear(x.tensor, same, out.tensor);
      EXPECT_EQ(Run(x.tensor, tiles, DType::kF32), Bytes(out.tensor)) << rows << " rows";
    }
  }
}

// Groups whose scales and elements do not fill the kernels' vectors.
TEST_P(LinearQuantizedTest, OddGroupsAreKeptPlain) {
  const Scheme scheme{.element = Element::kInt4, .block_rows = 1, .block_columns = 24};
  EXPECT_TRUE(backend().KeptScheme(scheme).is_plain());
  const OwnedPart owned = RandomPart(scheme, 8, 48, 17);
  EXPECT_EQ(backend().PackLinear({{owned.part}}, {dtype(), scheme}).status().code(),
            Code::kUnimplemented);
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearQuantizedTest,
                         ::testing::ValuesIn(OnCpu(AllBackendCases())), CaseName);

}  // namespace
}  // namespace tandem::ops
