// Linear on the GPU with weights of fp8, and where it stands beside plain weights in warm-ups and
// recorded work: compared with a double-precision reference, and bit for bit with other row counts.
#include <algorithm>
#include <cmath>

#include "ops/testing/product_test.h"
#include "ops/testing/round_to_fp8.h"

namespace tandem::ops {
namespace {

class LinearFp8Test : public ProductTest {
 protected:
  std::vector<std::byte> ReadBuffer(const Buffer& buffer) {
    std::vector<std::byte> bytes(buffer.bytes());
    backend().CopyToHost(bytes.data(), buffer.data(), bytes.size());
    return bytes;
  }
  std::vector<float> Scales(const LinearWeight& weight) {
    std::vector<float> scales(weight.scales.bytes() / sizeof(float));
    backend().CopyToHost(scales.data(), weight.scales.data(), weight.scales.bytes());
    return scales;
  }
  // The weights as stored, [rows, cols].
  std::vector<double> Kept(const LinearWeight& weight) {
    const std::vector<std::byte> bytes = ReadBuffer(weight.data);
    const std::vector<float> scales = Scales(weight);
    const int64_t pitch = static_cast<int64_t>(bytes.size()) / weight.rows;
    std::vector<double> values;
    for (int64_t row = 0; row < weight.rows; ++row) {
      for (int64_t col = 0; col < weight.cols; ++col) {
        values.push_back(Fp8Value(bytes[static_cast<size_t>(row * pitch + col)]) *
                         double{scales[static_cast<size_t>(row)]});
      }
    }
    return values;
  }
  WeightFormat Fp8() const { return {dtype(), Fp8Scheme(QuantScheme::Inputs::kDynamic)}; }
  LinearPart KeptPart(const Tensor& bytes, const Tensor& scales) const {
    return {.weight = bytes, .scale = scales, .scheme = Fp8().scheme};
  }
  LinearWeight Rounded(const Tensor& weight, const Tensor& bias = {}) {
    return backend().PackLinear({{{weight, bias}}}, Fp8()).value();
  }
  // Random signs and mantissas in +-[1, 2), times `scale` or, in two rows of three, a half or a
  // quarter of it.
  LinearWeight RandomWeight(int64_t outputs, int64_t cols, float scale, const Tensor& bias = {}) {
    const OwnedTensor bytes = Poisoned({outputs, cols}, DType::kF8E4M3);
    backend().FillRandom(bytes.tensor, {7, 0x8787878787878787u, 0x3838383838383838u});
    std::vector<float> values;
    for (int64_t row = 0; row < outputs; ++row) {
      values.push_back(std::ldexp(scale, -static_cast<int>(row % 3)));
    }
    const OwnedTensor scales = FromFloats({outputs}, DType::kF32, values);
    LinearPart part = KeptPart(bytes.tensor, scales.tensor);
    part.bias = bias;
    return backend().PackLinear({{part}}, Fp8()).value();
  }
  // Fp8 numbers times 2^-8, or in two rows of three a half or a quarter of it, which is the scale
  // that the row is given: rounding changes nothing.
  OwnedTensor Fp8Numbers(int64_t rows, int64_t cols) {
    const OwnedTensor any = Random({rows, cols}, dtype(), 51, 0.3f);
    std::vector<float> values;
    for (const double value : Doubles(any.tensor)) {
      const int64_t at = static_cast<int64_t>(values.size());
      const float scale = std::ldexp(0x1p-8f, -static_cast<int>(at / cols % 3));
      const float multiple = at % cols == 0 ? 448 : static_cast<float>(RoundToFp8(value * 0x1p8));
      values.push_back(scale * multiple);
    }
    return FromFloats({rows, cols}, dtype(), values);
  }

  // Of the differences.
  static double RootMeanSquare(const std::vector<double>& actual,
                               const std::vector<double>& expected) {
    double squares = 0;
    for (size_t i = 0; i < actual.size(); ++i) squares += std::pow(actual[i] - expected[i], 2);
    return std::sqrt(squares / static_cast<double>(actual.size()));
  }

  // The product with the weights as stored. Many rows may have been rounded to fp8 too, to 3 bits
  // of mantissa: 2.5 % per term, with either sign.
  void ExpectProduct(const Tensor& x, const LinearWeight& weight, DType out_dtype) {
    const OwnedTensor out = Poisoned({x.dim(0), weight.rows}, out_dtype);
    ops().Linear(x, weight, out.tensor);
    const std::vector<double> actual = Doubles(out.tensor);
    const std::vector<double> expected = Reference(x, Kept(weight), {});
    const double magnitude = std::sqrt(static_cast<double>(weight.cols));
    if (x.dim(0) <= 16 || GetParam().batch_invariant) {
      ExpectNear(actual, expected, Rounding(out_dtype) + 0x1p-23 * magnitude, magnitude);
      return;
    }
    ExpectNear(actual, expected, 0.15, magnitude);
    EXPECT_LT(RootMeanSquare(actual, expected), 0.035 * magnitude);
  }
};

TEST_P(LinearFp8Test, RoundsEachRowToItsOwnScale) {
  const int64_t rows = 37, cols = 100;
  std::mt19937 rng(20);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto row = static_cast<int>(i / cols);
    values.push_back(row == 3 ? 0.0f : std::ldexp(normal(rng), row - 24));
  }
  for (const DType from : {dtype(), DType::kF32}) {
    const OwnedTensor w = FromFloats({rows, cols}, from, values);
    const std::vector<double> exact = Doubles(w.tensor);
    // From the device's memory and from the host's.
    std::vector<std::byte> bytes = Bytes(w.tensor);
    const Tensor on_host{bytes.data(), from, w.tensor.shape, {}};
    const LinearWeight weight = Rounded(w.tensor);
    EXPECT_EQ(ReadBuffer(Rounded(on_host).data), ReadBuffer(weight.data));
    EXPECT_EQ(static_cast<int64_t>(weight.data.bytes() + weight.scales.bytes()),
              backend().PackedBytes(rows, cols, Fp8()));
    const std::vector<float> scales = Scales(weight);
    const std::vector<double> kept = Kept(weight);
    for (size_t row = 0; row < rows; ++row) {
      double largest = 0;
      for (size_t i = row * cols; i < (row + 1) * cols; ++i) {
        largest = std::max(largest, std::abs(exact[i]));
      }
      const double scale = largest == 0 ? 1.0 : largest / 448;
      EXPECT_NEAR(scales[row], scale, 1e-6 * scale);
      for (size_t i = row * cols; i < (row + 1) * cols; ++i) {
        // Half a step: of three bits of mantissa, and of subnormals.
        ASSERT_LE(std::abs(kept[i] - exact[i]),
                  1.001 * std::max(std::abs(exact[i]) * 0x1p-4, scale * 0x1p-10))
            << "element " << i << ": " << kept[i] << " for " << exact[i];
      }
    }
  }
}

TEST_P(LinearFp8Test, MatchesReference) {
  const LinearShape shapes[] = {{1, 1, 1},     {1, 32, 16},    {1, 2048, 96},  {2, 31, 15},
                                {3, 33, 17},   {4, 64, 129},   {5, 7, 64},     {7, 100, 130},
                                {8, 328, 48},  {12, 320, 48},  {16, 1056, 70}, {17, 96, 80},
                                {33, 130, 31}, {64, 256, 128}, {515, 40, 33},  {515, 1024, 64},
                                {1, 4672, 40}, {7, 1152, 72},  {11, 4672, 50}};
  for (const LinearShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message()
                 << shape.rows << " x " << shape.cols << " x " << shape.outputs);
    const OwnedTensor x = Random({shape.rows, shape.cols}, dtype(), 21);
    const OwnedTensor w = Random({shape.outputs, shape.cols}, dtype(), 22);
    const LinearWeight weight = Rounded(w.tensor);
    for (const DType out_dtype : {DType::kF32, dtype()}) ExpectProduct(x.tensor, weight, out_dtype);
  }
}

// Columns may be divided among two to eight blocks, and not at all; rows may be more than fit on
// the GPU at once.
TEST_P(LinearFp8Test, DividedColumnsAddUp) {
  const LinearShape shapes[] = {
      {17, 112, 16},   {32, 144, 80},    {33, 272, 48},     {64, 528, 208},   {40, 1168, 144},
      {20, 14336, 64}, {64, 14352, 80},  {29, 144, 4160},   {50, 400, 4224},  {64, 656, 2048},
      {18, 208, 8464}, {20, 1168, 8448}, {40, 1168, 16896}, {18, 912, 27008}, {100, 656, 2048},
      {65, 112, 16},   {128, 14352, 64}, {97, 4112, 400},   {99, 656, 8464},  {66, 4096, 2064},
      {129, 8208, 16}, {192, 14352, 64}, {161, 8192, 400}};
  for (const LinearShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message()
                 << shape.rows << " x " << shape.cols << " x " << shape.outputs);
    const OwnedTensor x = Fp8Numbers(shape.rows, shape.cols);
    const LinearWeight weight = RandomWeight(shape.outputs, shape.cols, 1.0f);
    const std::vector<double> expected = Reference(x.tensor, Kept(weight), {});
    const double magnitude = 1.5 * std::sqrt(static_cast<double>(shape.cols));
    for (const DType out_dtype : {DType::kF32, dtype()}) {
      const OwnedTensor out = Poisoned({shape.rows, shape.outputs}, out_dtype);
      ops().Linear(x.tensor, weight, out.tensor);
      // The matrix unit's sums of fp8 products keep about 13 bits: one of a million results is off
      // by more than 1e-3.
      ExpectNear(Doubles(out.tensor), expected, Rounding(out_dtype) + 2e-3, magnitude);
    }
  }
}

// Where the GPU has 132 multiprocessors: blocks of 256 rows, which keep 0.71 of them busy, just
// more than is asked for; blocks of 128 that divide no columns; and clusters of two, three and more
// of them. The blocks of 256 rows sum over all columns in the matrix unit, which keeps about 13
// bits. The products of up to 16 tokens, which are not rounded, serve as the reference.
TEST_P(LinearFp8Test, ManyTokensMatchFew) {
  const LinearShape shapes[] = {{130, 8192, 24016}, {192, 8192, 24016}, {192, 8192, 10256},
                                {150, 8192, 8192},  {128, 4096, 8192},  {99, 4096, 4096},
                                {140, 8192, 2064},  {192, 8192, 4176}};
  constexpr int64_t kFew = 13;
  for (const LinearShape& shape : shapes) {
    const bool sums_all_columns = shape.outputs > 20000;
    const double of_sums = sums_all_columns ? 0.04 : 0.007;
    const OwnedTensor x = Fp8Numbers(shape.rows, shape.cols);
    const OwnedTensor bias = Random({shape.outputs}, dtype(), 56);
    const LinearWeight weight = RandomWeight(shape.outputs, shape.cols, 1.0f, bias.tensor);
    const double magnitude = 0.3 * 1.5 * std::sqrt(static_cast<double>(shape.cols));
    for (const DType out_dtype : {DType::kF32, dtype()}) {
      SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.cols << " x "
                                        << shape.outputs << " to " << DTypeName(out_dtype));
      const OwnedTensor many = Poisoned({shape.rows, shape.outputs}, out_dtype);
      ops().Linear(x.tensor, weight, many.tensor);
      const OwnedTensor few = Poisoned({shape.rows, shape.outputs}, out_dtype);
      for (int64_t first = 0; first < shape.rows; first += kFew) {
        const int64_t rows = std::min(kFew, shape.rows - first);
        ops().Linear(x.tensor.RowRange(first, rows), weight, few.tensor.RowRange(first, rows));
      }
      const std::vector<double> actual = Doubles(many.tensor), expected = Doubles(few.tensor);
      ExpectNear(actual, expected, Rounding(out_dtype) + of_sums, magnitude);
      EXPECT_LT(RootMeanSquare(actual, expected), 0.01 * magnitude);
    }
  }
}

// If activations are rounded, then by the given scale: one this small clamps a third of them.
TEST_P(LinearFp8Test, TakesACalibratedRangeOfActivations) {
  constexpr float kScale = 0x1p-9f;  // exact in every type
  const OwnedTensor x = Random({64, 256}, dtype(), 23);
  const OwnedTensor w = Random({48, 256}, dtype(), 24);
  std::vector<float> values;
  for (const double value : Doubles(x.tensor)) {
    values.push_back(kScale * static_cast<float>(RoundToFp8(value / kScale)));
  }
  const OwnedTensor rounded = FromFloats({64, 256}, dtype(), values);
  LinearWeight weight = Rounded(w.tensor);
  weight.input_scale = kScale;
  ExpectProduct(x.tensor.Rows(3), weight, dtype());
  const OwnedTensor out = Poisoned({64, 48}, dtype());
  ops().Linear(x.tensor, weight, out.tensor);
  const std::vector<double> actual = Doubles(out.tensor);
  const std::vector<double> wide = Reference(x.tensor, Kept(weight), {});
  const bool rounds = RootMeanSquare(actual, wide) > 1.0;
  EXPECT_FALSE(rounds && GetParam().batch_invariant);
  // The matrix unit's sums of fp8 products keep about 13 bits.
  ExpectNear(actual, rounds ? Reference(rounded.tensor, Kept(weight), {}) : wide,
             Rounding(dtype()) + 1e-3, 16.0);
}

// The widths take blocks of each size.
TEST_P(LinearFp8Test, GatedMlpIsItsPartsBitForBit) {
  for (const WeightFormat& kept : {WeightFormat{dtype()}, Fp8()}) {
    ExpectGatedMlpIsItsParts(136, 1088, kept, {1, 7, 16, 20});
    ExpectGatedMlpIsItsParts(2050, 1728, kept, {1, 7, 9, 16});
    ExpectGatedMlpIsItsParts(4850, 1728, kept, {1, 8, 9, 16});
    ExpectGatedMlpIsItsParts(5120, 320, kept, {1, 8, 9, 16});
  }
}

// What lies between two products may be stored as the second multiplies it.
TEST_P(LinearFp8Test, GatedMlpIsItsPartsForValuesOfAnySize) {
  constexpr int64_t kCols = 192, kWidth = 256;
  const OwnedTensor in = Random({2 * kWidth, kCols}, dtype(), 15),
                    out = Random({64, kWidth}, dtype(), 16);
  const LinearWeight gate_up = Rounded(in.tensor), down = Rounded(out.tensor);
  for (const float size : {1e-30f, 1e-5f, 1e-3f, 30.0f, 1e3f, 1e15f, 1e30f}) {
    SCOPED_TRACE(size);
    for (const int64_t rows : {3, 16}) {
      const OwnedTensor x = Random({rows, kCols}, dtype(), 17, size);
      ExpectMlpIsItsParts(x.tensor, gate_up, down);
    }
  }
}

// They may be multiplied as fp16, whose range is smaller than that of bf16.
TEST_P(LinearFp8Test, LargeAndSmallActivationsKeepTheirPrecision) {
  const int64_t cols = 256;
  const OwnedTensor w = Random({48, cols}, dtype(), 37);
  const LinearWeight weight = Rounded(w.tensor);
  for (const int exponent : {-8, 0, 8, 16}) {
    if (dtype() == DType::kF16 && exponent > 8) continue;
    const auto scale = std::ldexp(1.0f, exponent);
    for (const int64_t rows : {1, 16, 40}) {
      if (rows > 16 && !GetParam().batch_invariant) continue;  // may be rounded to fp8
      const OwnedTensor x = Random({rows, cols}, dtype(), 38, scale);
      const OwnedTensor out = Poisoned({rows, 48}, DType::kF32);
      ops().Linear(x.tensor, weight, out.tensor);
      ExpectNear(Doubles(out.tensor), Reference(x.tensor, Kept(weight), {}), 1e-4, 16.0 * scale);
    }
  }
}

TEST_P(LinearFp8Test, HugeActivationsStayFinite) {
  const float huge = dtype() == DType::kBF16 ? 0x1p100f : 65504.0f;
  const double least = dtype() == DType::kBF16 ? 1e6 : 6e4;
  std::vector<float> values(2 * 64, 0.0f);
  values[5] = -huge;
  values[64 + 6] = huge;
  const OwnedTensor x = FromFloats({2, 64}, dtype(), values);
  const OwnedTensor w = FromFloats({16, 64}, dtype(), std::vector<float>(16 * 64, 1.0f));
  const OwnedTensor out = Poisoned({2, 16}, DType::kF32);
  ops().Linear(x.tensor, Rounded(w.tensor), out.tensor);
  const std::vector<double> result = Doubles(out.tensor);
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_TRUE(std::isfinite(result[i])) << i;
    EXPECT_GE(i < 16 ? -result[i] : result[i], least) << i;
  }
}

TEST_P(LinearFp8Test, AddsTheBias) {
  const int64_t outputs = 208;
  const int64_t cols = 272;
  for (const int64_t rows : {2, 17, 33, 70}) {
    const OwnedTensor x = FromFloats({rows, cols}, dtype(), std::vector<float>(rows * cols, 0.0f));
    const OwnedTensor w = Random({outputs, cols}, dtype(), 25);
    const OwnedTensor bias = Random({outputs}, dtype(), 26);
    const LinearWeight weight = Rounded(w.tensor, bias.tensor);
    std::vector<double> expected;
    for (int64_t row = 0; row < rows; ++row) {
      for (const double value : Doubles(bias.tensor)) expected.push_back(value);
    }
    const OwnedTensor out = Poisoned({rows, outputs}, dtype());
    ops().Linear(x.tensor, weight, out.tensor);
    EXPECT_EQ(Doubles(out.tensor), expected) << rows << " rows";
  }
}

// The weights of a product are read while the one before it still runs.
TEST_P(LinearFp8Test, AProductTakesWhatTheOneBeforeStored) {
  // Numbers of tokens, widths of the stream, and inner widths. The first two divide no columns.
  const LinearShape shapes[] = {{20, 8448, 8448}, {40, 16896, 16896}, {17, 1168, 2064},
                                {40, 1168, 2064}, {100, 4112, 4128},  {160, 8208, 8224}};
  for (const auto& [rows, width, inner_width] : shapes) {
    const OwnedTensor x = Random({rows, width}, dtype(), 53);
    // They keep the size of what they multiply.
    const auto scale = [](int64_t cols) { return 1.0f / std::sqrt(static_cast<float>(cols)); };
    const LinearWeight up = RandomWeight(inner_width, width, scale(width));
    const LinearWeight down = RandomWeight(width, inner_width, scale(inner_width));
    const OwnedTensor inner = Poisoned({rows, inner_width}, dtype());
    const OwnedTensor stream = Poisoned({rows, width}, dtype());
    const auto run = [&](bool waits) {
      backend().CopyToDevice(stream.tensor.data, Bytes(x.tensor).data(),
                             static_cast<size_t>(stream.tensor.NumBytes()));
      for (int i = 0; i < 10; ++i) {
        ops().Linear(stream.tensor, up, inner.tensor);
        if (waits) {
          EXPECT_TRUE(backend().Synchronize().ok());
        }
        ops().Linear(inner.tensor, down, stream.tensor);
        if (waits) {
          EXPECT_TRUE(backend().Synchronize().ok());
        }
      }
      return Bytes(stream.tensor);
    };
    const std::vector<std::byte> expected = run(true);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(run(false), expected) << rows << " rows";
  }
}

TEST_P(LinearFp8Test, KeepsFp8Weights) {
  const OwnedTensor w = Random({40, 48}, dtype(), 27);
  const LinearWeight weight = Rounded(w.tensor);
  const Tensor bytes = weight.data.View(DType::kF8E4M3, {40, 48});
  const Tensor scales = weight.scales.View(DType::kF32, {40});
  const LinearWeight same = backend().PackLinear({{KeptPart(bytes, scales)}}, Fp8()).value();
  EXPECT_EQ(ReadBuffer(same.data), ReadBuffer(weight.data));
  EXPECT_EQ(Scales(same), Scales(weight));
  // One scale for a whole part.
  const LinearWeight parts =
      backend()
          .PackLinear({{KeptPart(bytes, scales.Rows(1)), KeptPart(bytes, scales)}}, Fp8())
          .value();
  std::vector<float> expected(40, Scales(weight)[0]);
  for (const float scale : Scales(weight)) expected.push_back(scale);
  EXPECT_EQ(Scales(parts), expected);
}

// Quantized weights of any kind may be kept in the type of the activations.
TEST_P(LinearFp8Test, WidensWeightsThatLieOnTheHost) {
  std::vector<uint8_t> pairs(8 * 8);
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<uint8_t>(i * 29);
  const std::vector<float> scales(8 * 4, 0.25f);
  LinearPart part{.weight = {pairs.data(), DType::kU8, {8, 8}, {}},
                  .scale = {const_cast<float*>(scales.data()), DType::kF32, {8, 4}, {}},
                  .scheme = {QuantScheme::Element::kInt4, 1, 4}};
  const LinearWeight weight = backend().PackLinear({{part}}, {dtype()}).value();
  EXPECT_EQ(weight.dtype, dtype());
  std::vector<float> unit(16 * 16), expected;
  for (size_t i = 0; i < 16; ++i) unit[i * 16 + i] = 1.0f;
  const OwnedTensor x = FromFloats({16, 16}, dtype(), unit);
  const OwnedTensor out = Poisoned({16, 8}, DType::kF32);
  ops().Linear(x.tensor, weight, out.tensor);
  std::vector<std::vector<float>> rows(8, std::vector<float>(16));
  for (size_t row = 0; row < 8; ++row) WidenRow(part, static_cast<int64_t>(row), rows[row].data());
  const std::vector<double> result = Doubles(out.tensor);
  for (size_t col = 0; col < 16; ++col) {
    for (size_t row = 0; row < 8; ++row) EXPECT_EQ(result[col * 8 + row], rows[row][col]);
  }
}

class LinearFp8InvarianceTest : public LinearFp8Test {};

TEST_P(LinearFp8InvarianceTest, RowDoesNotDependOnTheOthers) {
  // Few steps of columns and many, whole and with a rest.
  for (const int64_t cols : {1104, 1152, 4672}) {
    const OwnedTensor x = Random({515, cols}, dtype(), 29);
    const OwnedTensor w = Random({200, cols}, dtype(), 30);
    ExpectRowsStandAlone(x.tensor, backend().PackLinear({{{w.tensor}}}, {dtype()}).value());
    ExpectRowsStandAlone(x.tensor, Rounded(w.tensor));
  }
}

// Enough outputs to fill the GPU without dividing the inputs; numbers over many powers of two,
// whose sums show any other order.
TEST_P(LinearFp8InvarianceTest, RowDoesNotDependOnTheOthersWithManyOutputs) {
  std::mt19937 rng(34);
  std::normal_distribution<float> normal;
  const auto spread = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(rng) * std::exp2(2 * normal(rng));
    return values;
  };
  for (const auto& [outputs, cols] :
       {std::pair<int64_t, int64_t>{26000, 584}, {9700, 1728}, {4100, 1728}, {8512, 2112}}) {
    const OwnedTensor x = FromFloats({515, cols}, dtype(), spread(515 * cols));
    const OwnedTensor w = FromFloats({outputs, cols}, dtype(), spread(outputs * cols));
    ExpectRowsStandAlone(x.tensor, backend().PackLinear({{{w.tensor}}}, {dtype()}).value());
    ExpectRowsStandAlone(x.tensor, Rounded(w.tensor));
  }
}

// More rows than one launch takes.
TEST_P(LinearFp8InvarianceTest, RowDoesNotDependOnTheOthersInALongPrompt) {
  const int64_t rows = 4200, outputs = 40, cols = 200;
  const OwnedTensor x = Random({rows, cols}, dtype(), 35);
  const OwnedTensor w = Random({outputs, cols}, dtype(), 36);
  for (const WeightFormat& kept : {WeightFormat{dtype()}, Fp8()}) {
    const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, kept).value();
    const std::vector<std::byte> all = Run(x.tensor, weight, dtype());
    for (const int64_t row : {0, 1399, 1400, 2048, 2799, 2800, 4199}) {
      const std::vector<std::byte> alone = Run(x.tensor.RowRange(row, 1), weight, dtype());
      ASSERT_EQ(std::memcmp(alone.data(), all.data() + row * outputs * 2, outputs * 2), 0)
          << "row " << row;
    }
  }
}

TEST_P(LinearFp8Test, NaNStaysInItsRow) {
  for (const int64_t rows : {9, 64}) {
    const int64_t cols = 656;
    std::vector<float> values(static_cast<size_t>(rows * cols), 1.0f);
    values[7 * cols + 300] = std::numeric_limits<float>::quiet_NaN();
    const OwnedTensor x = FromFloats({rows, cols}, dtype(), values);
    const OwnedTensor w = Random({32, cols}, dtype(), 31);
    const OwnedTensor out = Poisoned({rows, 32}, dtype());
    ops().Linear(x.tensor, Rounded(w.tensor), out.tensor);
    const std::vector<double> result = Doubles(out.tensor);
    for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(std::isnan(result[i]), i / 32 == 7) << i;
  }
}

// Work enqueued by an op can be recorded and enqueued again.
TEST_P(LinearFp8Test, ACapturedProductIsTheSame) {
  for (const int64_t rows : {1, 16, 64}) {
    const OwnedTensor x = Random({rows, 256}, dtype(), 32);
    const OwnedTensor w = Random({128, 256}, dtype(), 33);
    for (const WeightFormat& kept : {WeightFormat{dtype()}, Fp8()}) {
      const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, kept).value();
      const std::vector<std::byte> expected = Run(x.tensor, weight, dtype());
      const OwnedTensor out = Poisoned({rows, 128}, dtype());
      const auto graph = backend().Capture([&] { ops().Linear(x.tensor, weight, out.tensor); });
      ASSERT_NE(graph, nullptr);
      backend().Launch(*graph);
      ASSERT_TRUE(backend().Synchronize().ok());
      EXPECT_EQ(Bytes(out.tensor), expected);
    }
  }
}

TEST_P(LinearFp8Test, MatchesReferenceInAndAfterWarmUp) {
  const OwnedTensor x = Random({512, 1024}, dtype(), 40);
  const OwnedTensor w = Random({64, 1024}, dtype(), 41);
  const OwnedTensor wide = Random({10240, 1024}, dtype(), 42);
  const LinearWeight weight = Rounded(w.tensor);
  const LinearWeight wide_weight = Rounded(wide.tensor);
  const auto run = [&] {
    for (const int64_t rows : {16, 17, 64, 100, 512}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows");
      for (const DType out_dtype : {DType::kF32, dtype()}) {
        ExpectProduct(x.tensor.Rows(rows), weight, out_dtype);
      }
    }
    // Not divided among blocks on 132 multiprocessors: the library's.
    ExpectProduct(x.tensor.Rows(33), wide_weight, dtype());
  };
  backend().WarmUp(run);
  run();
}

// What warm-up found is used by direct calls and by graphs alike. A product that is recorded in
// warm-up is not tried in several ways, because a recording cannot wait.
TEST_P(LinearFp8Test, ACapturedProductIsTheSameInAndAfterWarmUp) {
  const OwnedTensor w = Random({256, 4096}, dtype(), 42);
  for (const WeightFormat& kept : {WeightFormat{dtype()}, Fp8()}) {
    const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, kept).value();
    for (const int64_t rows : {17, 32, 64, 256, 512}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows");
      const OwnedTensor x = Random({rows, 4096}, dtype(), 43);
      const OwnedTensor out = Poisoned({rows, 256}, dtype());
      const auto product = [&] { ops().Linear(x.tensor, weight, out.tensor); };
      const auto expect_same = [&](const std::unique_ptr<Graph>& graph) {
        ASSERT_NE(graph, nullptr);
        const std::vector<std::byte> expected = Run(x.tensor, weight, dtype());
        backend().Launch(*graph);
        ASSERT_TRUE(backend().Synchronize().ok());
        EXPECT_EQ(Bytes(out.tensor), expected);
      };
      product();  // first use may allocate, which a recording cannot
      std::unique_ptr<Graph> graph;
      backend().WarmUp([&] { graph = backend().Capture(product); });
      expect_same(graph);
      backend().WarmUp(product);
      EXPECT_EQ(Bytes(out.tensor), Run(x.tensor, weight, dtype()));
      expect_same(backend().Capture(product));
    }
  }
}

// None on a machine without a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearFp8Test);
INSTANTIATE_TEST_SUITE_P(Backends, LinearFp8Test, ::testing::ValuesIn(OnCuda(AllBackendCases())),
                         CaseName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearFp8InvarianceTest);
INSTANTIATE_TEST_SUITE_P(Backends, LinearFp8InvarianceTest,
                         ::testing::ValuesIn(Invariant(OnCuda(AllBackendCases()))), CaseName);

}  // namespace
}  // namespace tandem::ops
