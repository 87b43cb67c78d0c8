// The ops of multi-head latent attention on every backend: products by heads, the store of latents,
// and attention over them, compared with references in double precision.
#include <cmath>

#include "ops/testing/paged_pool.h"

namespace tandem::ops {
namespace {

class LatentTest : public PagedPoolTest {
 protected:
  // In int8 latents would need scales.
  std::vector<DType> CacheTypes() { return {dtype(), DType::kF8E4M3}; }
  // Element `i` of x, whose last `turned` of `width` elements turn at the position.
  static double Turned(const double* x, int32_t width, int32_t turned, int32_t i,
                       int32_t position) {
    const int32_t first = width - turned, half = turned / 2;
    if (i < first) return x[i];
    const int32_t pair = (i - first) % half;
    const double low = x[first + pair], high = x[first + pair + half];
    const double c = std::cos(Angle(position, pair)), s = std::sin(Angle(position, pair));
    return i - first < half ? low * c - high * s : high * c + low * s;
  }
  // Weights of each head, [heads, rows, cols], as a product by heads takes them.
  LinearWeight Pack(int64_t heads, int64_t rows, int64_t cols, const std::vector<float>& values) {
    const int64_t padded = PaddedHeadRows(rows);
    std::vector<float> all(static_cast<size_t>(heads * padded * cols), 1e30f);  // not to be used
    for (int64_t head = 0; head < heads; ++head) {
      std::copy_n(values.begin() + head * rows * cols, rows * cols,
                  all.begin() + head * padded * cols);
    }
    const OwnedTensor weight = FromFloats({heads * padded, cols}, dtype(), all);
    const LinearPart part{.weight = weight.tensor};
    return backend().PackLinear({&part, 1}, {dtype(), {}}).value();
  }
};

TEST_P(LatentTest, HeadsAreMultipliedEachByItsOwnWeights) {
  struct Case {
    int64_t rows, heads, inputs, outputs, x_stride, out_stride, first;
  };
  const Case cases[] = {{1, 3, 128, 512, 192, 576, 0}, {37, 4, 16, 32, 24, 40, 0},
                        {5, 2, 12, 20, 20, 33, 3},     {300, 2, 64, 10, 64, 10, 0},
                        {2, 7, 1, 1, 2, 3, 1},         {17, 2, 100, 130, 101, 140, 0}};
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.heads << " heads of " << c.outputs << " x " << c.inputs);
    const OwnedTensor x = Random({c.rows, c.first + c.heads * c.x_stride}, dtype(), 3);
    const OwnedTensor w = Random({c.heads, c.outputs, c.inputs}, dtype(), 4);
    const std::vector<double> xs = Doubles(x.tensor), ws = Doubles(w.tensor);
    const LinearWeight weight =
        Pack(c.heads, c.outputs, c.inputs, std::vector<float>(ws.begin(), ws.end()));
    const OwnedTensor out = Random({c.rows, c.first + c.heads * c.out_stride}, dtype(), 5);
    std::vector<double> expected = Doubles(out.tensor);  // between the heads nothing changes
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t head = 0; head < c.heads; ++head) {
        const double* in = xs.data() + row * x.tensor.dim(1) + c.first + head * c.x_stride;
        for (int64_t o = 0; o < c.outputs; ++o) {
          double sum = 0.0;
          for (int64_t i = 0; i < c.inputs; ++i) {
            sum += in[i] * ws[static_cast<size_t>((head * c.outputs + o) * c.inputs + i)];
          }
          expected[static_cast<size_t>(row * out.tensor.dim(1) + c.first + head * c.out_stride +
                                       o)] = sum;
        }
      }
    }
    const HeadColumns from{x.tensor, c.first, c.x_stride, c.inputs};
    const HeadColumns to{out.tensor, c.first, c.out_stride, c.outputs};
    ops().HeadLinear(from, weight, to);
    ExpectNear(Doubles(out.tensor), expected, Rounding(dtype()) + 1e-5,
               std::sqrt(static_cast<double>(c.inputs)));
    // A row's bits do not depend on the others.
    const OwnedTensor alone = Random({c.rows, out.tensor.dim(1)}, dtype(), 5);
    ops().HeadLinear({x.tensor.RowRange(c.rows - 1, 1), c.first, c.x_stride, c.inputs}, weight,
                     {alone.tensor.RowRange(c.rows - 1, 1), c.first, c.out_stride, c.outputs});
    EXPECT_EQ(Bytes(alone.tensor.RowRange(c.rows - 1, 1)),
              Bytes(out.tensor.RowRange(c.rows - 1, 1)));
  }
}

TEST_P(LatentTest, LatentsAreStoredWithTheirTurnedKeyAndQueriesTurn) {
  struct Case {
    int32_t num_heads, latent_dim, turned, q_dim;
  };
  // Where rows stand: their positions, or elsewhere in the tables.
  const std::vector<int32_t> elsewhere = {30, 31, 2, 2, 0, 7, 8, 9, 0, 0};
  const Buffer elsewhere_buffer = Ints(elsewhere);
  for (const Case& c : {Case{3, 32, 8, 24}, Case{16, 512, 64, 192}, Case{2, 20, 6, 17}}) {
    for (const DType element : CacheTypes()) {
      SCOPED_TRACE(::testing::Message()
                   << "latents of " << c.latent_dim << " in " << DTypeName(element));
      const int32_t dim = c.latent_dim + c.turned;
      MakeGroup({c.num_heads, 1, dim, 16, c.latent_dim}, 2, element);
      MakeTables(32, c.turned / 2);
      const std::vector<Range> ranges = {{0, 19, 5}, {1, 3, 3}};
      constexpr int32_t kRows = 8, kPadding = 2;
      const OwnedTensor q = Random({kRows + kPadding, c.num_heads * c.q_dim}, dtype(), 6);
      const OwnedTensor latents = Random({kRows + kPadding, dim}, dtype(), 7, 3.0f);
      const OwnedTensor queries = Random({kRows + kPadding, c.num_heads * dim}, dtype(), 8);
      const std::vector<double> in = Doubles(q.tensor), keys = Doubles(latents.tensor);
      std::vector<double> expected = Doubles(queries.tensor);
      const std::vector<std::byte> before = Bytes(kv_.data);
      const bool moved = c.num_heads == 2;
      OwnedBatch batch = MakeBatch(ranges, {.rows = kPadding});
      if (moved) batch.view.turns = elsewhere_buffer.As<int32_t>();
      ops().LatentRopeStore(q.tensor, latents.tensor, {cos_.tensor, sin_.tensor}, batch.view, kv_,
                            kLayer, queries.tensor);
      std::vector<double> stored, wanted;
      std::vector<std::byte> after = Bytes(kv_.data);
      const auto size = static_cast<int64_t>(SizeOf(element));
      for (int32_t row = 0; row < kRows; ++row) {
        const Range& range = ranges[row < 5 ? 0 : 1];
        const int32_t position = range.context - range.rows + (row < 5 ? row : row - 5);
        const int32_t turn = moved ? elsewhere[static_cast<size_t>(row)] : position;
        for (int32_t head = 0; head < c.num_heads; ++head) {
          const double* x = in.data() + (row * c.num_heads + head) * c.q_dim;
          for (int32_t i = 0; i < c.turned; ++i) {
            expected[static_cast<size_t>((row * c.num_heads + head) * dim + c.latent_dim + i)] =
                Turned(x, c.q_dim, c.turned, c.q_dim - c.turned + i, turn);
          }
        }
        const int64_t at = Offset(range.seq, position, 0, false);
        for (int32_t i = 0; i < dim; ++i) {
          const double value = Turned(keys.data() + row * dim, dim, c.turned, i, turn);
          if (kv_.has_8_bits()) {
            stored.push_back(ElementValue(after[static_cast<size_t>(at + i)]));
          } else {
            stored.push_back(Doubles(kv_.data.RowRange(at + i, 1))[0]);
          }
          wanted.push_back(value);
        }
        std::copy_n(before.begin() + at * size, dim * size, after.begin() + at * size);
      }
      EXPECT_EQ(after, before) << "other elements change";
      ExpectNear(Doubles(queries.tensor), expected, Rounding(dtype()) + 1e-6, 1.0);
      const double rounding = element == DType::kF8E4M3 ? 0x1p-4 : Rounding(dtype());
      ExpectNear(stored, wanted, rounding + 1e-6, 1.0);
    }
  }
}

TEST_P(LatentTest, AttentionIsOverLatents) {
  const std::vector<Range> mixed = {{0, 400, 2}, {1, 33, 5}, {2, 17, 17}, {3, 100, 70}, {4, 1, 1}};
  for (const AttentionShape& shape :
       {AttentionShape{3, 1, 40, 16, 32}, AttentionShape{16, 1, 576, 32, 512},
        AttentionShape{2, 1, 28, 16, 20}, AttentionShape{5, 1, 64, 64, 48}}) {
    for (const DType element : CacheTypes()) {
      for (const Contents contents : {Contents::kRandom, Contents::kCounting}) {
        SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads over latents of "
                                          << shape.latent_dim << " in " << DTypeName(element)
                                          << (contents == Contents::kCounting ? ", counting" : ""));
        MakeGroup(shape, 5, element);
        FillGroup(contents);
        Attend(mixed, {.rows = 3, .seqs = 1});
        ExpectReference(mixed);
      }
    }
  }
}

class LatentInvarianceTest : public LatentTest {};

TEST_P(LatentInvarianceTest, ARowOfLatentsDoesNotDependOnTheOthers) {
  MakeGroup({16, 1, 576, 32, 512}, 2, dtype());
  FillGroup(Contents::kRandom);
  const std::vector<std::byte> together = Attend({{0, 300, 40}, {1, 65, 3}});
  const std::vector<std::byte> alone = Attend({{0, 300, 1}});
  const auto row_bytes = static_cast<ptrdiff_t>(RowBytes());
  EXPECT_TRUE(
      std::equal(alone.begin(), alone.begin() + row_bytes, together.begin() + 39 * row_bytes));
}

TEST_P(LatentTest, CopyBlockCopiesLeadingTokensOfAllLayers) {
  MakeGroup({2, 1, 12, 4, 8}, 1, dtype());
  FillGroup(Contents::kRandom);
  const std::vector<double> values = Doubles(kv_.data);
  ops().CopyBlock({.groups = {kv_}, .layers = {}}, 3, 7, 2);
  const std::vector<double> result = Doubles(kv_.data);
  const int64_t per_block = kv_.elements_per_block(), per_head = kv_.elements_per_head();
  EXPECT_EQ(per_block, kLayers * 4 * 12);
  for (int64_t i = 0; i < kv_.data.NumElements(); ++i) {
    const bool copied = i / per_block == 7 && i % per_head < 2 * kv_.head_dim;
    const auto from = static_cast<size_t>(copied ? i - 4 * per_block : i);
    ASSERT_EQ(result[static_cast<size_t>(i)], values[from]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LatentTest, ::testing::ValuesIn(AllBackendCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, LatentInvarianceTest,
                         ::testing::ValuesIn(Invariant(AllBackendCases())), CaseName);

}  // namespace
}  // namespace tandem::ops
