// QkvRopeStore over pools with given contents: padding, heads that turn in halves, elements of 8
// bits.
#include <algorithm>
#include <cmath>

#include "ops/testing/paged_pool.h"

namespace tandem::ops {
namespace {

class QkvRopeStoreTest : public PagedPoolTest {
 protected:
  // For heads that are turned in `parts`.
  void MakeTablesOf(int32_t positions, int32_t parts = 1) {
    halves_ = parts == 2;
    MakeTables(positions, shape_.head_dim / parts / 2);
  }
  void Store(const Tensor& qkv, const OwnedBatch& batch) {
    const RopeTable rope = {.cos = cos_.tensor, .sin = sin_.tensor, .halves = halves_};
    ops().QkvRopeStore(qkv, rope, batch.view, kv_, kLayer);
  }

  bool halves_ = false;
};

TEST_P(QkvRopeStoreTest, PaddingIsNeitherStoredNorRotated) {
  const AttentionShape shape{4, 2, 64, 16};
  const std::vector<Range> ranges = {{0, 3, 3}, {1, 2, 2}};
  MakeGroup(shape, 2, dtype());
  MakeTablesOf(16);
  const OwnedTensor exact = Random({5, Width()}, dtype(), 5);
  Store(exact.tensor, MakeBatch(ranges, {}));
  const std::vector<std::byte> stored = Bytes(kv_.data);

  MakeGroup(shape, 2, dtype());
  const OwnedTensor padded = Random({8, Width()}, dtype(), 5);
  const std::vector<std::byte> before = Bytes(padded.tensor);
  Store(padded.tensor, MakeBatch(ranges, {.rows = 3, .seqs = 2}));
  EXPECT_EQ(Bytes(kv_.data), stored);
  EXPECT_EQ(Bytes(padded.tensor.Rows(5)), Bytes(exact.tensor));
  const std::vector<std::byte> after = Bytes(padded.tensor);
  EXPECT_TRUE(std::equal(after.begin() + std::ssize(after) / 8 * 5, after.end(),
                         before.begin() + std::ssize(before) / 8 * 5));
}

// As normed first and then stored, for heads that a GPU norms where it turns them and others.
TEST_P(QkvRopeStoreTest, NormedHeadsAreNormedAndThenTurned) {
  const std::vector<Range> ranges = {{0, 3, 3}, {1, 2, 2}};
  for (const int32_t head_dim : {20, 64, 96, 128, 256}) {
    for (const bool together : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "heads of " << head_dim << ", together " << together);
      const AttentionShape shape{4, 2, head_dim, 16};
      const auto columns = [&](int64_t heads, const OwnedTensor& weight) {
        return HeadNorms::Columns{
            .count = heads * head_dim,
            .width = weight.tensor.NumElements(),
            .norm = {.epsilon = 1e-5f, .weight_offset = 1.0f, .weight = weight.tensor}};
      };
      const auto weight_of = [&](int64_t heads, uint64_t seed) {
        return Random({together ? heads * head_dim : head_dim}, dtype(), seed);
      };
      const OwnedTensor query_weight = weight_of(4, 7), key_weight = weight_of(2, 8);
      const HeadNorms norms = {columns(4, query_weight), columns(2, key_weight)};
      const auto stored = [&](const auto& store) {
        MakeGroup(shape, 2, dtype());
        MakeTablesOf(16);
        const OwnedTensor qkv = Random({5, Width()}, dtype(), 5);
        store(qkv.tensor, MakeBatch(ranges, {}));
        // What is left of keys in qkv is not said.
        std::vector<double> values = Doubles(kv_.data);
        for (int64_t row = 0; row < 5; ++row) {
          const std::vector<double> of_row = Doubles(qkv.tensor.RowRange(row, 1));
          values.insert(values.end(), of_row.begin(), of_row.begin() + norms.queries.count);
        }
        return values;
      };
      const std::vector<double> apart = stored([&](const Tensor& qkv, const OwnedBatch& batch) {
        ops().NormHeads(qkv, 0, norms.queries.count, norms.queries.width, norms.queries.norm);
        ops().NormHeads(qkv, norms.queries.count, norms.keys.count, norms.keys.width,
                        norms.keys.norm);
        Store(qkv, batch);
      });
      const std::vector<double> at_once = stored([&](const Tensor& qkv, const OwnedBatch& batch) {
        ops().NormQkvRopeStore(qkv, norms, {cos_.tensor, sin_.tensor}, batch.view, kv_, kLayer);
      });
      ExpectNear(at_once, apart, 2 * Rounding(dtype()) + 1e-5, 1.0);
    }
  }
}

// With the bits of the product and QkvRopeStore one after another, for sizes that a GPU computes at
// once and others.
TEST_P(QkvRopeStoreTest, AProductIsTurnedAndStoredAsApart) {
  using Scheme = QuantScheme;
  const std::vector<WeightFormat> formats = {
      {dtype()},
      {dtype(), Fp8Scheme(Scheme::Inputs::kPlain)},
      {dtype(), Scheme{.element = Scheme::Element::kInt8, .block_rows = 1}},
      {dtype(), Scheme{.element = Scheme::Element::kInt4, .block_rows = 1, .block_columns = 32}},
      {dtype(), Scheme{.element = Scheme::Element::kInt4, .block_rows = 1, .block_columns = 64}}};
  struct Sizes {
    AttentionShape shape;
    int64_t hidden;
    bool has_factors = false;  // and turns of its own
  };
  const std::vector<Sizes> all_sizes = {
      {{4, 2, 64, 16}, 128},   {{3, 1, 80, 5}, 192},   {{2, 2, 16, 8}, 128, true},
      {{4, 1, 20, 8}, 64},     {{2, 1, 64, 16}, 100},  {{16, 1, 128, 16}, 64, true},
      {{128, 2, 128, 16}, 64}, {{64, 8, 128, 16}, 64}, {{32, 1, 128, 16}, 64}};
  const std::vector<std::vector<Range>> batches = {
      {{0, 3, 3}, {1, 9, 2}}, {{0, 11, 11}, {1, 16, 1}}, {{0, 16, 12}, {1, 6, 6}}};
  const Slack padding = {.rows = 3, .seqs = 1};
  const std::vector<int32_t> turns = {5,  4,  3,  2, 1, 0, 6, 7, 8, 9, 10,
                                      15, 14, 13, 0, 0, 1, 2, 3, 4, 5};
  const Buffer turns_buffer = Ints(turns);
  for (const Sizes& sizes : all_sizes) {
    for (const WeightFormat& format : formats) {
      for (const DType element : sizes.has_factors ? AllTypes() : std::vector{dtype()}) {
        MakeGroup(sizes.shape, 2, element);
        MakeTablesOf(16);
        const OwnedTensor factors = Random({16}, DType::kF32, 4);
        const RopeTable rope = {.cos = cos_.tensor,
                                .sin = sin_.tensor,
                                .query_factors = sizes.has_factors ? factors.tensor : Tensor{}};
        const OwnedTensor stored = Random({Width(), sizes.hidden}, dtype(), 1, 0.2f);
        const OwnedTensor bias = Random({Width()}, dtype(), 2);
        const LinearWeight weight =
            backend().PackLinear({{{stored.tensor, bias.tensor}}}, format).value();
        const OwnedTensor norm_weight = Random({sizes.hidden}, dtype(), 3);
        const OwnedTensor plain = Random({sizes.hidden, sizes.hidden}, dtype(), 9, 0.1f);
        // In the format of what takes the sum; and in others, for which a GPU may leave it in
        // another form.
        std::vector<WeightFormat> formats_of_squares = {format};
        if (backend().device().kind == Device::Kind::kCuda) {
          formats_of_squares.insert(formats_of_squares.end(), formats.begin(), formats.begin() + 2);
        }
        std::vector<LinearWeight> squares_of;
        for (const WeightFormat& of_square : formats_of_squares) {
          squares_of.push_back(backend().PackLinear({{{plain.tensor}}}, of_square).value());
        }
        const OwnedTensor input = Random({kMaxAddedRows, sizes.hidden}, dtype(), 10);
        const OwnedTensor squares = Poisoned({kMaxAddedRows}, DType::kI64);
        const bool turns_with_product =
            sizes.shape.head_dim % (format.scheme.element == Scheme::Element::kInt4 ? 32 : 16) == 0;
        for (const std::vector<Range>& ranges : batches) {
          SCOPED_TRACE(::testing::Message()
                       << sizes.shape.num_heads << " heads of " << sizes.shape.head_dim
                       << ", weights " << DescribeFormat(format) << ", pool " << DTypeName(element)
                       << ", " << ranges.front().rows << " rows first");
          OwnedBatch batch = MakeBatch(ranges, padding);
          if (sizes.has_factors) batch.view.turns = turns_buffer.As<int32_t>();
          const int32_t rows = batch.view.num_rows;
          // The keys and values, and the queries of rows that are no padding.
          const auto bytes_of = [&](const auto& store) {
            MakeGroup(sizes.shape, 2, element);
            const OwnedTensor residual = Random({rows, sizes.hidden}, dtype(), 5);
            const OwnedTensor delta = Random({rows, sizes.hidden}, dtype(), 6);
            const OwnedTensor normed = Poisoned({rows, sizes.hidden}, dtype());
            const OwnedTensor qkv = Poisoned({rows, Width()}, dtype());
            store(NormedRows{.residual = residual.tensor,
                             .delta = delta.tensor,
                             .norm = {.epsilon = 1e-5f, .weight = norm_weight.tensor},
                             .rows = normed.tensor},
                  qkv.tensor);
            std::vector<std::byte> bytes = Bytes(kv_.data);
            const auto query_bytes = static_cast<int64_t>(SizeOf(dtype())) * sizes.shape.num_heads *
                                     sizes.shape.head_dim;
            for (int32_t row = 0; row < rows - padding.rows; ++row) {
              const std::vector<std::byte> of_row = Bytes(qkv.tensor.RowRange(row, 1));
              bytes.insert(bytes.end(), of_row.begin(), of_row.begin() + query_bytes);
            }
            return bytes;
          };
          const BatchView& view = batch.view;
          const auto apart = bytes_of([&](const NormedRows& x, const Tensor& qkv) {
            ops().Linear(x.residual, weight, qkv);
            ops().QkvRopeStore(qkv, rope, view, kv_, kLayer);
          });
          const auto at_once = bytes_of([&](const NormedRows& x, const Tensor& qkv) {
            ops().LinearRopeStore(x.residual, weight, qkv, rope, view, kv_, kLayer);
          });
          ASSERT_TRUE(at_once == apart);
          const auto normed_apart = bytes_of([&](const NormedRows& x, const Tensor& qkv) {
            ops().NormLinear(x, weight, qkv);
            ops().QkvRopeStore(qkv, rope, view, kv_, kLayer);
          });
          const auto normed_at_once = bytes_of([&](const NormedRows& x, const Tensor& qkv) {
            ops().NormLinearRopeStore(x, weight, qkv, rope, view, kv_, kLayer);
          });
          ASSERT_TRUE(normed_at_once == normed_apart);
          EXPECT_FALSE(apart == normed_apart);
          // Of rows to which a product has been added, whose norm is left to the next.
          if (rows > kMaxAddedRows) continue;
          for (const LinearWeight& square : squares_of) {
            const auto after_sum = [&](const auto& store) {
              return bytes_of([&](const NormedRows& x, const Tensor& qkv) {
                NormedRows sum = x;
                sum.squares = squares.tensor;
                ops().ClearSquares(sum.squares);
                ops().LinearAdd(input.tensor.Rows(rows), square, sum);
                store(sum, qkv);
              });
            };
            const auto summed_apart = after_sum([&](const NormedRows& x, const Tensor& qkv) {
              ops().NormLinear(x, weight, qkv);
              ops().QkvRopeStore(qkv, rope, view, kv_, kLayer);
            });
            const auto summed_at_once = after_sum([&](const NormedRows& x, const Tensor& qkv) {
              ops().NormLinearRopeStore(x, weight, qkv, rope, view, kv_, kLayer);
            });
            // Heads that the product does not turn are normed before it, which rounds otherwise.
            EXPECT_TRUE(!turns_with_product || summed_at_once == summed_apart);
          }
        }
      }
    }
  }
}

TEST_P(QkvRopeStoreTest, HalvesTurnByPositionsOfTheirOwn) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 2, 64, 16}, AttentionShape{3, 1, 20, 5}, AttentionShape{2, 2, 128, 8}}) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, 2, dtype());
    const std::vector<Range> ranges = {{0, 8, 7}, {1, 3, 3}};
    const std::vector<int32_t> positions = {1, 2, 3, 4, 5, 6, 7, 0, 1, 2};
    const std::vector<int32_t> second = {0, 0, 0, 0, 1, 2, 3, 15, 0, 7};
    const std::vector<int32_t> first = {1, 2, 3, 4, 4, 4, 4, 0, 1, 2};
    const Buffer turns_buffer = Ints(first), second_buffer = Ints(second);
    for (const auto& [parts, masked] : {std::pair(1, true), {2, false}, {2, true}}) {
      MakeTablesOf(16, parts);
      OwnedBatch batch = MakeBatch(ranges, {});
      if (masked) batch.view.turns = turns_buffer.As<int32_t>();
      if (parts == 2) batch.view.second_positions = second_buffer.As<int32_t>();
      const OwnedTensor qkv = Random({std::ssize(positions), Width()}, dtype(), 8);
      const std::vector<double> in = Doubles(qkv.tensor);
      Store(qkv.tensor, batch);
      const std::vector<double> out = Doubles(qkv.tensor), stored = Doubles(kv_.data);
      std::vector<double> actual, expected;
      const int32_t part_dim = shape.head_dim / parts, half = part_dim / 2;
      for (int32_t row = 0; row < std::ssize(positions); ++row) {
        const int32_t seq = row < ranges[0].rows ? 0 : 1;
        const int32_t position = positions[static_cast<size_t>(row)];
        const int32_t turns[] = {masked ? first[static_cast<size_t>(row)] : position,
                                 second[static_cast<size_t>(row)]};
        for (int32_t head = 0; head < shape.num_heads + shape.num_kv_heads; ++head) {
          const int64_t at = row * Width() + head * shape.head_dim;
          const int32_t kv_head = head - shape.num_heads;
          const double* turned =
              kv_head < 0 ? out.data() + at : stored.data() + Offset(seq, position, kv_head, false);
          for (int32_t i = 0; i < shape.head_dim; ++i) {
            const int32_t part = i / part_dim, pair = i % half;
            const double* x = in.data() + at + part * part_dim + pair;
            const double angle = Angle(turns[part], pair);
            const double c = std::cos(angle), s = std::sin(angle);
            actual.push_back(turned[i]);
            expected.push_back(i % part_dim < half ? x[0] * c - x[half] * s
                                                   : x[half] * c + x[0] * s);
          }
        }
      }
      ExpectNear(actual, expected, Rounding(dtype()) + 1e-6, 1.0);
    }
  }
}

TEST_P(QkvRopeStoreTest, APoolOf8BitsHoldsRoundedAndSaturatedValues) {
  for (const AttentionShape& shape : {AttentionShape{4, 2, 64, 16}, AttentionShape{3, 1, 6, 5}}) {
    for (const DType element : TypesOf8Bits()) {
      SCOPED_TRACE(DTypeName(element));
      const bool fp8 = element == DType::kF8E4M3;
      const double largest = fp8 ? 448.0 : 127.0;
      MakeGroup(shape, 1, element);
      MakeTablesOf(16);
      constexpr int32_t kRows = 7;
      // Some lie beyond what a value can be, the largest element times its scale.
      const OwnedTensor qkv = Random({kRows, Width()}, dtype(), 6, fp8 ? 12.0f : 4.0f);
      const std::vector<double> in = Doubles(qkv.tensor);
      Store(qkv.tensor, MakeBatch({{0, kRows, kRows}}, {}));
      const std::vector<std::byte> stored = Bytes(kv_.data);
      int saturated = 0;
      const auto expect = [&](int64_t at, double expected) {
        const double bounded = std::clamp(expected, -largest, largest);
        saturated += bounded != expected;
        // Half of the last of three mantissa bits, or of a step of 2^-9 (or of 1); plus the error
        // of fp32.
        const double half_step = fp8 ? std::max(std::abs(bounded) * 0x1p-4, 0x1p-10) : 0.5;
        ASSERT_NEAR(ElementValue(stored[static_cast<size_t>(at)]), bounded, half_step + 1e-4);
      };
      const int32_t half = shape.head_dim / 2;
      for (int32_t row = 0; row < kRows; ++row) {
        for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
          const double* k = in.data() + row * Width() + (shape.num_heads + head) * shape.head_dim;
          const double* v = k + shape.num_kv_heads * shape.head_dim;
          const int64_t key = Offset(0, row, head, false), value = Offset(0, row, head, true);
          for (int32_t i = 0; i < half; ++i) {
            const double c = std::cos(Angle(row, i)), s = std::sin(Angle(row, i));
            expect(key + i, (k[i] * c - k[i + half] * s) / KeyScale(kLayer, head));
            expect(key + i + half, (k[i + half] * c + k[i] * s) / KeyScale(kLayer, head));
          }
          for (int32_t i = 0; i < shape.head_dim; ++i) {
            expect(value + i, v[i] / ValueScale(kLayer, head));
          }
        }
      }
      EXPECT_GT(saturated, 0);
    }
  }
}

// Every number of e4m3, the ties between them, and numbers beyond; with a scale of 1 nothing else
// is rounded.
TEST_P(QkvRopeStoreTest, ValuesAreRoundedToTheNearestElementTiesToEven) {
  std::vector<float> values = {500.0f, -6e4f, 127.49f, -127.6f, 0.5f, 1.5f, -2.5f, 0.0f};
  for (int byte = 0; byte < 0x7e; ++byte) {
    const double low = Fp8Value(static_cast<std::byte>(byte));
    const double high = Fp8Value(static_cast<std::byte>(byte + 1));
    for (const double share : {0.0, 0.25, 0.5, 0.75}) {
      values.push_back(
          static_cast<float>((byte % 3 == 0 ? -1.0 : 1.0) * (low + share * (high - low))));
    }
  }
  values.resize(512, 0.0f);
  for (const DType element : TypesOf8Bits()) {
    SCOPED_TRACE(DTypeName(element));
    MakeGroup({1, 1, 512, 16}, 1, element);
    kv_.key_scales = kv_.value_scales = {};
    MakeTablesOf(16);
    std::vector<float> row(1024, 0.0f);
    row.insert(row.end(), values.begin(), values.end());
    const OwnedTensor qkv = FromFloats({1, 1536}, dtype(), row);
    const std::vector<double> in = Doubles(qkv.tensor);
    Store(qkv.tensor, MakeBatch({{0, 1, 1}}, {}));
    const std::vector<std::byte> stored = Bytes(kv_.data);
    const int64_t at = Offset(0, 0, 0, true);
    for (size_t i = 0; i < 512; ++i) {
      const double value = in[1024 + i];
      const double expected = element == DType::kF8E4M3
                                  ? RoundToFp8(value)
                                  : std::clamp(std::nearbyint(value), -127.0, 127.0);
      ASSERT_EQ(ElementValue(stored[static_cast<size_t>(at) + i]), expected) << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, QkvRopeStoreTest, ::testing::ValuesIn(AllBackendCases()),
                         CaseName);

}  // namespace
}  // namespace tandem::ops
