// The ops that work row by row, on every backend, compared with double-precision references:
// normalization, activation, look-up, the gated MLP.
#include <algorithm>
#include <cmath>

#include "ops/testing/op_test.h"

namespace tandem::ops {
namespace {

class RowOpsTest : public OpTest {
 protected:
  // Plain, and what else the backend multiplies.
  std::vector<WeightFormat> WeightFormats() {
    std::vector<WeightFormat> formats = {{dtype()}};
    if (backend().device().kind == Device::Kind::kCuda) {
      formats.push_back({dtype(), Fp8Scheme(QuantScheme::Inputs::kDynamic)});
      formats.push_back({dtype(),
                         {.element = QuantScheme::Element::kInt8,
                          .block_rows = 1,
                          .inputs = QuantScheme::Inputs::kDynamic}});
    }
    return formats;
  }
  // `value` as it is after a round trip through the case's type.
  double Rounded(double value) {
    const OwnedTensor one = FromFloats({1}, dtype(), {static_cast<float>(value)});
    return Doubles(one.tensor)[0];
  }
};

TEST_P(RowOpsTest, RmsNormMatchesReference) {
  for (const int64_t hidden : {1, 16, 37, 384, 2050, 8208}) {
    for (const bool with_delta : {false, true}) {
      SCOPED_TRACE(::testing::Message() << hidden << (with_delta ? " with delta" : ""));
      const int64_t rows = 3;
      const OwnedTensor residual = Random({rows, hidden}, dtype(), 1, 3.0f);
      const OwnedTensor delta = Random({rows, hidden}, dtype(), 2);
      const OwnedTensor weight = Random({hidden}, dtype(), 3);
      const OwnedTensor out = Poisoned({rows, hidden}, dtype());
      std::vector<double> sums = Doubles(residual.tensor);
      const std::vector<double> d = Doubles(delta.tensor), w = Doubles(weight.tensor);
      if (with_delta) {
        for (size_t i = 0; i < sums.size(); ++i) sums[i] = Rounded(sums[i] + d[i]);
      }
      ops().AddNorm({.residual = residual.tensor,
                     .delta = with_delta ? delta.tensor : Tensor{},
                     .norm = {.epsilon = 1e-5f, .weight = weight.tensor},
                     .rows = out.tensor});
      ExpectNear(Doubles(residual.tensor), sums, 0.0, 0.0);
      std::vector<double> expected;
      for (int64_t row = 0; row < rows; ++row) {
        double squares = 0.0;
        for (int64_t i = 0; i < hidden; ++i) squares += std::pow(sums[row * hidden + i], 2);
        const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
        for (int64_t i = 0; i < hidden; ++i)
          expected.push_back(sums[row * hidden + i] * inverse * w[i]);
      }
      ExpectNear(Doubles(out.tensor), expected, Rounding(dtype()) + 1e-6, 1e-4);
    }
  }
}

TEST_P(RowOpsTest, NormedRowDoesNotDependOnTheOthers) {
  const int64_t rows = 300, hidden = 200;
  const OwnedTensor weight = Random({hidden}, dtype(), 3);
  const OwnedTensor delta = Random({rows, hidden}, dtype(), 2);
  const OwnedTensor all = Random({rows, hidden}, dtype(), 1),
                    all_out = Poisoned({rows, hidden}, dtype());
  const Norm norm = {.epsilon = 1e-5f, .weight = weight.tensor};
  ops().AddNorm({all.tensor, delta.tensor, norm, all_out.tensor});
  const OwnedTensor one = Random({rows, hidden}, dtype(), 1),
                    one_out = Poisoned({1, hidden}, dtype());
  ops().AddNorm({one.tensor.Rows(1), delta.tensor.Rows(1), norm, one_out.tensor});
  EXPECT_EQ(Bytes(one_out.tensor), Bytes(all_out.tensor.Rows(1)));
  EXPECT_EQ(Bytes(one.tensor.Rows(1)), Bytes(all.tensor.Rows(1)));
}

// (x - mean) / deviation and its like, in double precision.
std::vector<double> Normed(std::vector<double> x, const Norm& norm, const std::vector<double>& w,
                           const std::vector<double>& bias) {
  const auto count = static_cast<double>(x.size());
  double mean = 0.0, squares = 0.0;
  if (norm.kind == Norm::Kind::kLayer) {
    for (const double value : x) mean += value / count;
  }
  for (const double value : x) squares += std::pow(value - mean, 2) / count;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = (x[i] - mean) / std::sqrt(squares + norm.epsilon) * (w[i] + norm.weight_offset);
    if (!bias.empty()) x[i] += bias[i];
  }
  return x;
}

TEST_P(RowOpsTest, EveryFormOfNormMatchesReference) {
  for (const int64_t hidden : {1, 37, 384, 2050}) {
    for (const Norm::Kind kind : {Norm::Kind::kRms, Norm::Kind::kLayer}) {
      for (const float offset : {0.0f, 1.0f}) {
        for (const bool biased : {false, true}) {
          SCOPED_TRACE(::testing::Message() << hidden << ", offset " << offset << biased);
          const OwnedTensor residual = Random({3, hidden}, dtype(), 1, 3.0f);
          const OwnedTensor delta = Random({3, hidden}, dtype(), 2);
          const OwnedTensor weight = Random({hidden}, dtype(), 3);
          const OwnedTensor bias = Random({hidden}, dtype(), 4);
          const std::vector<double> d = Doubles(delta.tensor);
          std::vector<double> sums = Doubles(residual.tensor), expected;
          for (size_t i = 0; i < sums.size(); ++i) sums[i] = Rounded(2.5 * sums[i] + d[i]);
          const Norm norm = {.kind = kind,
                             .epsilon = 1e-5f,
                             .weight_offset = offset,
                             .weight = weight.tensor,
                             .bias = biased ? bias.tensor : Tensor{}};
          for (auto row = sums.begin(); row != sums.end(); row += hidden) {
            const auto normed = Normed({row, row + hidden}, norm, Doubles(weight.tensor),
                                       biased ? Doubles(bias.tensor) : std::vector<double>{});
            expected.insert(expected.end(), normed.begin(), normed.end());
          }
          // In place, as a stream that the norm replaces.
          ops().AddNorm({.residual = residual.tensor,
                         .delta = delta.tensor,
                         .norm = norm,
                         .rows = residual.tensor,
                         .residual_scale = 2.5f});
          ExpectNear(Doubles(residual.tensor), expected, 2 * Rounding(dtype()) + 1e-5, 1.0);
        }
      }
    }
  }
}

TEST_P(RowOpsTest, HeadsAreNormedEachTogetherOrWithTheirOwnWeights) {
  constexpr int64_t kHeads = 3, kDim = 20, kFirst = 10, kRows = 4;
  constexpr int64_t kColumns = kFirst + kHeads * kDim + 5;
  struct Form {
    int64_t width, weights;
  };
  for (const Form& form :
       {Form{kDim, kDim}, Form{kHeads * kDim, kHeads * kDim}, Form{kDim, kHeads * kDim}}) {
    SCOPED_TRACE(::testing::Message() << form.width << ", " << form.weights << " weights");
    const OwnedTensor qkv = Random({kRows, kColumns}, dtype(), 5, 2.0f);
    const OwnedTensor weight = Random({form.weights}, dtype(), 6);
    const std::vector<double> w = Doubles(weight.tensor);
    std::vector<double> expected = Doubles(qkv.tensor);
    const Norm norm = {.epsilon = 1e-6f, .weight = weight.tensor};
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t at = 0; at < kHeads * kDim; at += form.width) {
        const auto begin = expected.begin() + row * kColumns + kFirst + at;
        const auto first = w.begin() + (form.weights == form.width ? 0 : at);
        const auto normed =
            Normed({begin, begin + form.width}, norm, {first, first + form.width}, {});
        std::copy(normed.begin(), normed.end(), begin);
      }
    }
    ops().NormHeads(qkv.tensor, kFirst, kHeads * kDim, form.width, norm);
    ExpectNear(Doubles(qkv.tensor), expected, Rounding(dtype()) + 1e-5, 1e-3);
  }
}

// Ranks with a share of the heads each, whose sums are added up, norm them as one rank with all.
TEST_P(RowOpsTest, HeadsOfSeveralRanksAreNormedTogether) {
  constexpr int64_t kRows = 3, kQueries = 300, kKeys = 40, kRanks = 2, kRest = 7;
  const OwnedTensor weights = Random({kRanks * (kQueries + kKeys)}, dtype(), 6);
  const std::vector<double> w = Doubles(weights.tensor);
  std::vector<OwnedTensor> rows, sums;
  std::vector<HeadNorms> norms;
  std::vector<double> query_squares(kRows), key_squares(kRows), total(2 * kRows);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const int64_t columns = kQueries + kKeys + kRest;
    rows.push_back(Random({kRows, columns}, dtype(), static_cast<uint32_t>(7 + rank), 2.0f));
    sums.push_back(Poisoned({kRows, 2}, DType::kF32));
    const auto part = [&](int64_t first, int64_t count) {
      return HeadNorms::Columns{
          .count = count,
          .width = count,
          .norm = {.epsilon = 1e-5f,
                   .weight_offset = 0.5f,
                   .weight = {static_cast<std::byte*>(weights.tensor.data) +
                                  first * static_cast<int64_t>(SizeOf(dtype())),
                              dtype(),
                              {count},
                              weights.tensor.device}}};
    };
    const int64_t first = rank * (kQueries + kKeys);
    norms.push_back({part(first, kQueries), part(first + kQueries, kKeys)});
    ops().SumHeadSquares(rows.back().tensor, norms.back(), sums.back().tensor);
    const std::vector<double> x = Doubles(rows.back().tensor), sum = Doubles(sums.back().tensor);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kQueries + kKeys; ++i) {
        const double value = x[static_cast<size_t>(row * columns + i)];
        (i < kQueries ? query_squares : key_squares)[static_cast<size_t>(row)] += value * value;
      }
      total[static_cast<size_t>(2 * row)] += sum[static_cast<size_t>(2 * row)];
      total[static_cast<size_t>(2 * row + 1)] += sum[static_cast<size_t>(2 * row + 1)];
    }
  }
  std::vector<double> squares;
  for (size_t row = 0; row < kRows; ++row) {
    squares.insert(squares.end(), {query_squares[row], key_squares[row]});
  }
  for (size_t i = 0; i < squares.size(); ++i) EXPECT_NEAR(total[i] / squares[i], 1.0, 1e-5);
  const OwnedTensor all =
      FromFloats({kRows, 2}, DType::kF32, std::vector<float>(squares.begin(), squares.end()));
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<size_t>(rank);
    std::vector<double> expected = Doubles(rows[at].tensor);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kQueries + kKeys; ++i) {
        const bool is_query = i < kQueries;
        const double mean = squares[static_cast<size_t>(2 * row + (is_query ? 0 : 1))] /
                            static_cast<double>(kRanks * (is_query ? kQueries : kKeys));
        expected[static_cast<size_t>(row * (kQueries + kKeys + kRest) + i)] *=
            (w[static_cast<size_t>(rank * (kQueries + kKeys) + i)] + 0.5) / std::sqrt(mean + 1e-5);
      }
    }
    ops().NormHeadsBySums(rows[at].tensor, norms[at], all.tensor, kRanks);
    ExpectNear(Doubles(rows[at].tensor), expected, Rounding(dtype()) + 1e-5, 1e-3);
  }
}

TEST_P(RowOpsTest, AddAddsRows) {
  const OwnedTensor sum = Random({5, 37}, dtype(), 1), x = Random({5, 37}, dtype(), 2);
  std::vector<double> expected = Doubles(sum.tensor);
  const std::vector<double> added = Doubles(x.tensor);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = Rounded(expected[i] + added[i]);
  ops().Add(sum.tensor, x.tensor);
  ExpectNear(Doubles(sum.tensor), expected, 0.0, 0.0);
}

TEST_P(RowOpsTest, EveryActivationMatchesReferenceWithAndWithoutAGate) {
  const auto function = [](Activation activation, double x) {
    switch (activation) {
      case Activation::kSilu:
        return x / (1.0 + std::exp(-x));
      case Activation::kGelu:
        return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
      case Activation::kGeluTanh:
        return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
      case Activation::kRelu:
        return std::max(x, 0.0);
      case Activation::kClampedSwiglu:
        break;  // of experts alone: experts_test
    }
    return x;
  };
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    for (const int64_t gated : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(activation) << ", " << gated);
      constexpr int64_t kRows = 3, kWidth = 1101;
      const OwnedTensor in = Random({kRows, gated * kWidth}, dtype(), 7, 4.0f);
      const OwnedTensor out = Poisoned({kRows, kWidth}, dtype());
      const std::vector<double> x = Doubles(in.tensor);
      std::vector<double> expected;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = 0; i < kWidth; ++i) {
          const auto at = static_cast<size_t>(row * gated * kWidth + i);
          const double up = gated == 2 ? x[at + kWidth] : 1.0;
          expected.push_back(function(activation, x[at]) * up);
        }
      }
      ops().Activate(activation, in.tensor, out.tensor);
      ExpectNear(Doubles(out.tensor), expected, Rounding(dtype()) + 2e-6, 1.0);
    }
  }
}

TEST_P(RowOpsTest, LogitsAreScaledAndCapped) {
  for (const float cap : {0.0f, 30.0f}) {
    const OwnedTensor logits = Random({3, 333}, DType::kF32, 8, 40.0f);
    std::vector<double> expected = Doubles(logits.tensor);
    for (double& value : expected) {
      value *= 0.25;
      if (cap > 0) value = cap * std::tanh(value / cap);
    }
    ops().CapLogits(logits.tensor, 0.25f, cap);
    ExpectNear(Doubles(logits.tensor), expected, 1e-5, 1.0);
  }
}

TEST_P(RowOpsTest, SwiGluMatchesReference) {
  for (const int64_t width : {1, 15, 64, 1500}) {
    const int64_t rows = 5;
    const OwnedTensor gate_up = Random({rows, 2 * width}, dtype(), 4, 8.0f);
    const OwnedTensor out = Poisoned({rows, width}, dtype());
    ops().Activate(Activation::kSilu, gate_up.tensor, out.tensor);
    const std::vector<double> in = Doubles(gate_up.tensor);
    std::vector<double> expected;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const double gate = in[row * 2 * width + i], up = in[row * 2 * width + width + i];
        expected.push_back(gate / (1.0 + std::exp(-gate)) * up);
      }
    }
    ExpectNear(Doubles(out.tensor), expected, Rounding(dtype()) + 1e-6, 1e-4);
  }
}

TEST_P(RowOpsTest, SwiGluSurvivesExtremes) {
  const float big = dtype() == DType::kF16 ? 6e4f : 1e30f;
  const OwnedTensor gate_up = FromFloats({1, 8}, dtype(), {big, -big, 0.0f, -100.0f, 1, 1, 1, 1});
  const OwnedTensor out = Poisoned({1, 4}, dtype());
  ops().Activate(Activation::kSilu, gate_up.tensor, out.tensor);
  const std::vector<double> result = Doubles(out.tensor);
  EXPECT_NEAR(result[0] / Rounded(big), 1.0, 1e-6);
  EXPECT_NEAR(result[1], 0.0, 1e-6);
  EXPECT_EQ(result[2], 0.0);
  EXPECT_NEAR(result[3], 0.0, 1e-30);
}

TEST_P(RowOpsTest, EmbedAndGatherRowsCopyBits) {
  for (const int64_t width : {33, 64}) {
    const OwnedTensor table = Random({50, width}, dtype(), 5);
    const std::vector<int32_t> ids = {49, 0, 7, 7, 12, 50, 1 << 30};
    const Buffer rows = Ints(ids);
    const std::vector<std::byte> source = Bytes(table.tensor);
    const size_t row_bytes = static_cast<size_t>(width) * SizeOf(dtype());
    const OwnedTensor embedded = Poisoned({7, width}, dtype()),
                      gathered = Poisoned({7, width}, dtype());
    ops().Embed(table.tensor, rows.As<int32_t>(), embedded.tensor);
    ops().GatherRows(table.tensor, rows.As<int32_t>(), gathered.tensor);
    EXPECT_EQ(Bytes(embedded.tensor), Bytes(gathered.tensor));
    const std::vector<std::byte> result = Bytes(embedded.tensor);
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t row = ids[i] < 50 ? static_cast<size_t>(ids[i]) : 0;  // there is no row 50
      EXPECT_EQ(
          std::memcmp(result.data() + i * row_bytes, source.data() + row * row_bytes, row_bytes),
          0);
    }
  }
}

// Sequences of 3, 0, 5 and 1 rows, of which three slices have parts.
TEST_P(RowOpsTest, ASliceHasTheRowsOfEachSequenceThatLieInIt) {
  const Buffer start = Ints({0, 3, 3, 8, 9}), context = Ints({13, 4, 5, 70});
  const BatchView batch = {.num_rows = 12,
                           .num_seqs = 4,
                           .query_start = start.As<int32_t>(),
                           .context_len = context.As<int32_t>()};
  struct Case {
    int32_t first_row, num_rows;
    std::vector<int32_t> query_start, context_len;
  };
  // The rows after the last one are nobody's.
  for (const Case& slice :
       {Case{0, 4, {0, 3, 3, 4, 4}, {13, 4, 1, 69}}, Case{4, 3, {0, 0, 0, 3, 3}, {13, 4, 4, 69}},
        Case{7, 5, {0, 0, 0, 1, 2}, {13, 4, 5, 70}},
        Case{0, 12, {0, 3, 3, 8, 9}, {13, 4, 5, 70}}}) {
    const Buffer arrays = Ints(std::vector<int32_t>(9, -1));
    auto* const query_start = arrays.As<int32_t>();
    ops().LaySlice(batch, {.first_row = slice.first_row,
                           .num_rows = slice.num_rows,
                           .query_start = query_start,
                           .context_len = query_start + 5});
    std::vector<int32_t> expected = slice.query_start;
    expected.insert(expected.end(), slice.context_len.begin(), slice.context_len.end());
    std::vector<int32_t> got(9);
    backend().CopyToHost(got.data(), query_start, 9 * sizeof(int32_t));
    EXPECT_EQ(got, expected) << "from row " << slice.first_row;
  }
}

TEST_P(RowOpsTest, APartOfATableGivesItsRowsAndZerosForOthers) {
  for (const int64_t width : {33, 64}) {
    const OwnedTensor table = Random({50, width}, dtype(), 5);
    const std::vector<int32_t> ids = {49, 0, 19, 20, 39, 40, 50, 1 << 30};
    const Buffer tokens = Ints(ids);
    const std::vector<std::byte> source = Bytes(table.tensor);
    const size_t row_bytes = static_cast<size_t>(width) * SizeOf(dtype());
    for (const int64_t first : {0, 20, 40}) {
      const int64_t rows = std::min<int64_t>(20, 50 - first);
      const OwnedTensor out = Poisoned({8, width}, dtype());
      ops().EmbedPart({.rows = table.tensor.RowRange(first, rows), .first = first, .num_rows = 50},
                      tokens.As<int32_t>(), out.tensor);
      const std::vector<std::byte> result = Bytes(out.tensor);
      for (size_t i = 0; i < ids.size(); ++i) {
        const int64_t row = ids[i] < 50 ? ids[i] : 0;  // there is no row 50
        std::vector<std::byte> expected(row_bytes);
        if (row >= first && row < first + rows) {
          std::memcpy(expected.data(), source.data() + static_cast<size_t>(row) * row_bytes,
                      row_bytes);
        }
        EXPECT_EQ(std::memcmp(result.data() + i * row_bytes, expected.data(), row_bytes), 0)
            << "token " << ids[i] << ", from row " << first;
      }
    }
  }
}

// Few and many rows; widths of which a thread of the GPU has one piece, some, and more than it
// keeps.
TEST_P(RowOpsTest, GatedMlpIsItsParts) {
  for (const WeightFormat& weights : WeightFormats()) {
    for (const int64_t width : {80, 4112, 33024}) {
      for (const int64_t rows : {4, 40}) {
        if (width > 4112 && weights.scheme.is_plain()) continue;
        SCOPED_TRACE(::testing::Message()
                     << DescribeFormat(weights) << ", " << rows << " x " << width);
        const int64_t hidden = 48;
        const OwnedTensor x = Random({rows, hidden}, dtype(), 6);
        const OwnedTensor gate = Random({width, hidden}, dtype(), 7),
                          up = Random({width, hidden}, dtype(), 8);
        const OwnedTensor down = Random({hidden, width}, dtype(), 9);
        const LinearWeight gate_up_weight =
            backend().PackLinear({{{gate.tensor}, {up.tensor}}}, weights).value();
        const LinearWeight down_weight = backend().PackLinear({{{down.tensor}}}, weights).value();
        const OwnedTensor gate_up = Poisoned({rows, 2 * width}, dtype());
        const OwnedTensor activated = Poisoned({rows, width}, dtype());
        const OwnedTensor fused = Poisoned({rows, hidden}, dtype()),
                          composed = Poisoned({rows, hidden}, dtype());
        ops().Mlp(x.tensor, gate_up_weight, Activation::kSilu, down_weight, gate_up.tensor,
                  activated.tensor, fused.tensor);
        ops().Linear(x.tensor, gate_up_weight, gate_up.tensor);
        ops().Activate(Activation::kSilu, gate_up.tensor, activated.tensor);
        ops().Linear(activated.tensor, down_weight, composed.tensor);
        if (rows == 40 && backend().device().kind == Device::Kind::kCuda) {
          EXPECT_EQ(Bytes(fused.tensor), Bytes(composed.tensor));
        }
        const std::vector<double> expected = Doubles(composed.tensor);
        double largest = 1.0;
        for (const double value : expected) largest = std::max(largest, std::abs(value));
        ExpectNear(Doubles(fused.tensor), expected, 4 * Rounding(dtype()), largest);
      }
    }
  }
}

// With and without something to add, into the rows that were added; rows of which a thread of the
// GPU has one piece, and more than it keeps.
TEST_P(RowOpsTest, ProductsOfNormedRowsHaveTheBitsOfTheirParts) {
  constexpr float kEpsilon = 1e-5f;
  for (const WeightFormat& format : WeightFormats()) {
    for (const int64_t hidden : {48, 1040, 9216}) {
      const OwnedTensor norm = Random({hidden}, dtype(), 20);
      const OwnedTensor w = Random({64, hidden}, dtype(), 21);
      const OwnedTensor down = Random({hidden, 32}, dtype(), 22);
      const LinearWeight weight = backend().PackLinear({{{w.tensor}}}, format).value();
      const LinearWeight down_weight = backend().PackLinear({{{down.tensor}}}, format).value();
      for (const int64_t rows : {1, 16, 40}) {
        const OwnedTensor normed = Poisoned({rows, hidden}, dtype());
        const OwnedTensor scratch = Poisoned({rows, hidden}, dtype());
        const OwnedTensor product = Poisoned({rows, 64}, dtype());
        const OwnedTensor activated = Poisoned({rows, 32}, dtype());
        for (const bool adds : {false, true}) {
          SCOPED_TRACE(::testing::Message() << DescribeFormat(format) << ", " << rows << " x "
                                            << hidden << (adds ? ", adding" : ""));
          const auto residual = [&] { return Random({rows, hidden}, dtype(), 23); };
          const auto delta = [&] { return Random({rows, hidden}, dtype(), 24); };
          const OwnedTensor expected_residual = residual(), expected_delta = delta();
          const auto rows_of = [&](const OwnedTensor& stream, const OwnedTensor& added,
                                   const OwnedTensor& rows) {
            return NormedRows{.residual = stream.tensor,
                              .delta = adds ? added.tensor : Tensor{},
                              .norm = {.epsilon = kEpsilon, .weight = norm.tensor},
                              .rows = rows.tensor};
          };
          ops().AddNorm(rows_of(expected_residual, expected_delta, normed));
          {
            const OwnedTensor out = Poisoned({rows, 64}, dtype());
            const OwnedTensor stream = residual(), added = delta();
            ops().Linear(normed.tensor, weight, product.tensor);
            ops().NormLinear(rows_of(stream, added, scratch), weight, out.tensor);
            EXPECT_EQ(Bytes(out.tensor), Bytes(product.tensor));
            EXPECT_EQ(Bytes(stream.tensor), Bytes(expected_residual.tensor));
          }
          {
            const OwnedTensor stream = residual(), added = delta();
            const OwnedTensor out = Poisoned({rows, hidden}, dtype());
            ops().Mlp(normed.tensor, weight, Activation::kSilu, down_weight, product.tensor,
                      activated.tensor, out.tensor);
            ops().NormMlp(rows_of(stream, added, scratch), weight, Activation::kSilu, down_weight,
                          product.tensor, activated.tensor, added.tensor);
            EXPECT_EQ(Bytes(added.tensor), Bytes(out.tensor));
            EXPECT_EQ(Bytes(stream.tensor), Bytes(expected_residual.tensor));
          }
        }
      }
    }
  }
}

// LinearAdd, and the products of what it leaves, beside single ops. A GPU adds up to 16 rows.
TEST_P(RowOpsTest, AProductIsAddedToTheStreamAndItsNormTakenByTheNext) {
  const bool must_add =
      GetParam().name.starts_with("cuda") && !GetParam().batch_invariant && dtype() == DType::kBF16;
  std::vector<WeightFormat> formats = WeightFormats();
  formats.push_back(
      {dtype(), {.element = QuantScheme::Element::kInt4, .block_rows = 1, .block_columns = 64}});
  constexpr int64_t kCols = 192, kNeurons = 128;
  for (const WeightFormat& format : formats) {
    for (const int64_t hidden : {64, 2048, 4224, 10304, 17024}) {
      const OwnedTensor norm_weight = Random({hidden}, dtype(), 20);
      const Norm norm = {.epsilon = 1e-5f, .weight = norm_weight.tensor};
      const auto pack_as = [&](const WeightFormat& as, int64_t rows, int64_t cols, uint32_t seed) {
        const OwnedTensor w = Random({rows, cols}, dtype(), seed, 0.1f);
        return backend().PackLinear({{{w.tensor}}}, as).value();
      };
      const auto pack = [&](int64_t rows, int64_t cols, uint32_t seed) {
        return pack_as(format, rows, cols, seed);
      };
      const LinearWeight weight = pack(hidden, kCols, 21), head = pack(64, hidden, 22);
      const LinearWeight gate_up = pack(2 * kNeurons, hidden, 23);
      const LinearWeight down = pack(hidden, kNeurons, 24);
      // Of sums of `hidden` products with elements of about 1 and 0.1.
      const double size = 0.1 * std::sqrt(static_cast<double>(hidden));
      std::vector<std::byte> first_row;  // of the stream and its squares, for any number of rows
      // A stream of 0.01 is small beside epsilon, the unit of squares and the range of fp16.
      for (const auto& [rows, stream_size] :
           {std::pair(1, 30.0f), {5, 30.0f}, {16, 30.0f}, {1, 0.01f}, {16, 0.01f}}) {
        SCOPED_TRACE(::testing::Message() << DescribeFormat(format) << ", " << rows << " x "
                                          << hidden << ", stream of " << stream_size);
        const OwnedTensor x = Random({rows, kCols}, dtype(), 25, stream_size / 30.0f);
        const OwnedTensor apart = Random({rows, hidden}, dtype(), 26, stream_size);
        const OwnedTensor stream = Random({rows, hidden}, dtype(), 26, stream_size);
        const OwnedTensor delta = Poisoned({rows, hidden}, dtype());
        const OwnedTensor normed = Poisoned({rows, hidden}, dtype());
        const OwnedTensor scratch = Poisoned({rows, hidden}, dtype());
        const OwnedTensor squares = Poisoned({kMaxAddedRows}, DType::kI64);
        const OwnedTensor pending = Poisoned({rows, hidden}, dtype());
        NormedRows sum = {.residual = stream.tensor,
                          .delta = pending.tensor,
                          .norm = norm,
                          .rows = scratch.tensor,
                          .squares = squares.tensor};
        ops().ClearSquares(squares.tensor);
        ops().LinearAdd(x.tensor, weight, sum);
        ASSERT_EQ(sum.HasSum(), must_add);
        ops().Linear(x.tensor, weight, delta.tensor);
        if (!must_add) {
          EXPECT_TRUE(sum.squares.empty());
          EXPECT_EQ(Bytes(stream.tensor), Bytes(apart.tensor));
          EXPECT_EQ(Bytes(sum.delta), Bytes(delta.tensor));
          continue;
        }
        ops().AddNorm({apart.tensor, delta.tensor, norm, normed.tensor});
        EXPECT_EQ(Bytes(stream.tensor), Bytes(apart.tensor));
        const std::vector<double> values = Doubles(stream.tensor);
        const std::vector<std::byte> units = Bytes(squares.tensor);
        for (int64_t row = 0; row < rows; ++row) {
          double expected_sum = 0.0;
          for (int64_t i = row * hidden; i < (row + 1) * hidden; ++i) {
            expected_sum += values[static_cast<size_t>(i)] * values[static_cast<size_t>(i)];
          }
          int64_t sum_units;
          std::memcpy(&sum_units, units.data() + row * sizeof(int64_t), sizeof(int64_t));
          ASSERT_NEAR(static_cast<double>(sum_units) * kSquaresUnit / expected_sum, 1.0, 1e-5);
        }
        std::vector<std::byte> of_first = Bytes(stream.tensor.RowRange(0, 1));
        of_first.insert(of_first.end(), units.begin(), units.begin() + sizeof(int64_t));
        if (rows == 1) first_row = of_first;
        EXPECT_EQ(of_first, first_row);

        const OwnedTensor expected = Poisoned({rows, 64}, dtype());
        const OwnedTensor product = Poisoned({rows, 64}, dtype());
        ops().Linear(normed.tensor, head, expected.tensor);
        ops().NormLinear(sum, head, product.tensor);
        ExpectNear(Doubles(product.tensor), Doubles(expected.tensor), 4 * Rounding(dtype()), size);

        const OwnedTensor inner = Poisoned({rows, 2 * kNeurons}, dtype());
        const OwnedTensor activated = Poisoned({rows, kNeurons}, dtype());
        const OwnedTensor mlp = Poisoned({rows, hidden}, dtype());
        ops().Mlp(normed.tensor, gate_up, Activation::kSilu, down, inner.tensor, activated.tensor,
                  delta.tensor);
        ops().NormMlp(sum, gate_up, Activation::kSilu, down, inner.tensor, activated.tensor,
                      mlp.tensor);
        ExpectNear(Doubles(mlp.tensor), Doubles(delta.tensor), 16 * Rounding(dtype()),
                   0.1 * size * size * std::sqrt(double{kNeurons}));

        NormedRows after = sum;
        const OwnedTensor squares_after = Poisoned({kMaxAddedRows}, DType::kI64);
        after.delta = pending.tensor;
        after.squares = squares_after.tensor;
        ops().ClearSquares(after.squares);
        ops().NormMlpAdd(sum, gate_up, Activation::kSilu, down, inner.tensor, activated.tensor,
                         after);
        ASSERT_TRUE(after.HasSum());
        ops().AddNorm({apart.tensor, mlp.tensor, norm, normed.tensor});
        EXPECT_EQ(Bytes(stream.tensor), Bytes(apart.tensor));
        ops().Linear(normed.tensor, head, expected.tensor);
        ops().NormLinear(after, head, product.tensor);
        ExpectNear(Doubles(product.tensor), Doubles(expected.tensor), 4 * Rounding(dtype()), size);
        ops().AddNorm(after);
        EXPECT_EQ(Bytes(scratch.tensor), Bytes(normed.tensor));

        // The same of an MLP whose input's norm is to be taken first, with a delta.
        NormedRows from_delta = after;
        from_delta.delta = delta.tensor;
        from_delta.squares = {};
        NormedRows last = sum;
        last.delta = pending.tensor;
        ops().ClearSquares(last.squares);
        ops().NormMlpAdd(from_delta, gate_up, Activation::kSilu, down, inner.tensor,
                         activated.tensor, last);
        ASSERT_TRUE(last.HasSum());
        ops().AddNorm({apart.tensor, delta.tensor, norm, normed.tensor});
        ops().Mlp(normed.tensor, gate_up, Activation::kSilu, down, inner.tensor, activated.tensor,
                  mlp.tensor);
        ops().AddNorm({apart.tensor, mlp.tensor, norm, normed.tensor});
        EXPECT_EQ(Bytes(stream.tensor), Bytes(apart.tensor));

        // Products of weights of another type than `weight` take the sum, too.
        if (hidden != 2048 || rows != 5) continue;
        for (const WeightFormat& other : formats) {
          SCOPED_TRACE(::testing::Message() << "then " << DescribeFormat(other));
          const auto add = [&](NormedRows next) {
            next.delta = pending.tensor;
            next.squares = squares.tensor;
            ops().ClearSquares(next.squares);
            ops().LinearAdd(x.tensor, weight, next);
            ops().Linear(x.tensor, weight, delta.tensor);
            ops().AddNorm({apart.tensor, delta.tensor, norm, normed.tensor});
            return next;
          };
          const LinearWeight other_head = pack_as(other, 64, hidden, 22);
          const NormedRows for_head = add(sum);
          ops().Linear(normed.tensor, other_head, expected.tensor);
          ops().NormLinear(for_head, other_head, product.tensor);
          ExpectNear(Doubles(product.tensor), Doubles(expected.tensor), 4 * Rounding(dtype()),
                     size);
          const LinearWeight other_gate_up = pack_as(other, 2 * kNeurons, hidden, 23);
          const double mlp_size = 0.1 * size * size * std::sqrt(double{kNeurons});
          const NormedRows for_mlp = add(sum);
          ops().Mlp(normed.tensor, other_gate_up, Activation::kSilu, down, inner.tensor,
                    activated.tensor, delta.tensor);
          ops().NormMlp(for_mlp, other_gate_up, Activation::kSilu, down, inner.tensor,
                        activated.tensor, mlp.tensor);
          ExpectNear(Doubles(mlp.tensor), Doubles(delta.tensor), 16 * Rounding(dtype()), mlp_size);
          const NormedRows for_sum = add(sum);
          ops().Mlp(normed.tensor, other_gate_up, Activation::kSilu, down, inner.tensor,
                    activated.tensor, delta.tensor);
          NormedRows after_mlp = last;
          after_mlp.delta = pending.tensor;
          ops().ClearSquares(after_mlp.squares = squares_after.tensor);
          ops().NormMlpAdd(for_sum, other_gate_up, Activation::kSilu, down, inner.tensor,
                           activated.tensor, after_mlp);
          ops().AddNorm({apart.tensor, delta.tensor, norm, normed.tensor});
          ExpectNear(Doubles(stream.tensor), Doubles(apart.tensor), 2 * Rounding(dtype()),
                     10.0 * stream_size + 8 * mlp_size);
          const std::vector<std::byte> same = Bytes(apart.tensor);
          backend().CopyToDevice(stream.tensor.data, same.data(), same.size());
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RowOpsTest, ::testing::ValuesIn(AllBackendCases()), CaseName);

}  // namespace
}  // namespace tandem::ops
