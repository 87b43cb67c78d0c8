// QkvRopeStore, PagedAttention and CopyBlock on every backend: compared with a double-precision
// reference over ragged batches, and bit for bit with other divisions of the same work.
#include <algorithm>
#include <cmath>

#include "ops/testing/op_test.h"

namespace tandem::ops {
namespace {

struct AttentionShape {
  int32_t num_heads, num_kv_heads, head_dim, block_tokens;
};

// Rows [context - rows, context) of one sequence.
struct Range {
  int32_t seq = 0;
  int32_t context = 0;
  int32_t rows = 0;
  int32_t prefix = 0;  // keys that every row sees
};

constexpr int32_t kMaxBlocks = 40;
constexpr int32_t kLayers = 2;
constexpr int32_t kLayer = 1;

class AttentionTest : public OpTest {
 protected:
  // What heads are like from now on, and their rotary tables.
  void UseShape(const AttentionShape& shape) {
    shape_ = shape;
    rule_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    turned_ = shape.head_dim;
    MakeRope();
  }
  // Of the first `turned_` elements of a head.
  void MakeRope() {
    const AttentionShape& shape = shape_;
    const int32_t positions = kMaxBlocks * shape.block_tokens;
    std::vector<float> cos, sin;
    for (int32_t position = 0; position < positions; ++position) {
      for (int32_t i = 0; i < turned_ / 2; ++i) {
        const double angle = position * std::pow(10000.0, -2.0 * i / turned_);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    cos_ = FromFloats({positions, turned_ / 2}, DType::kF32, cos);
    sin_ = FromFloats({positions, turned_ / 2}, DType::kF32, sin);
  }
  // A group whose every element is NaN, and per sequence a table of scattered block ids, the same
  // whatever the shape.
  void MakeGroup(const AttentionShape& shape, int32_t num_seqs) {
    UseShape(shape);
    kv_.num_blocks = num_seqs * kMaxBlocks;
    kv_.num_layers = kLayers;
    kv_.num_kv_heads = shape.num_kv_heads;
    kv_.block_tokens = shape.block_tokens;
    kv_.head_dim = shape.head_dim;
    kv_memory_ = Poisoned({kv_.num_blocks * kv_.elements_per_block()}, dtype());
    kv_.data = kv_memory_.tensor;
    std::vector<int32_t> ids(static_cast<size_t>(kv_.num_blocks));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(99));
    tables_ = ids;
  }
  int64_t Width() const { return (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim; }

  // The qkv row of (seq, position), the same in every batch.
  std::vector<float> QkvRow(int32_t seq, int32_t position) const {
    std::mt19937 rng(static_cast<uint32_t>(seq * 100003 + position));
    std::normal_distribution<float> normal(0.0f, 1.5f);
    std::vector<float> row(static_cast<size_t>(Width()));
    for (float& value : row) value = normal(rng);
    return row;
  }

  // Stores and attends the ranges as one batch; returns its output rows.
  std::vector<std::byte> Step(const std::vector<Range>& ranges) {
    std::vector<int32_t> positions, row_seq, query_start = {0}, context_len, prefix_len, table;
    std::vector<float> values;
    for (const Range& range : ranges) {
      for (int32_t p = range.context - range.rows; p < range.context; ++p) {
        positions.push_back(p);
        row_seq.push_back(static_cast<int32_t>(context_len.size()));
        const std::vector<float> row = QkvRow(range.seq, p);
        values.insert(values.end(), row.begin(), row.end());
      }
      query_start.push_back(static_cast<int32_t>(positions.size()));
      context_len.push_back(range.context);
      prefix_len.push_back(range.prefix);
      table.insert(table.end(), tables_.begin() + range.seq * kMaxBlocks,
                   tables_.begin() + (range.seq + 1) * kMaxBlocks);
    }
    const auto rows = static_cast<int64_t>(positions.size());
    const OwnedTensor qkv = FromFloats({rows, Width()}, dtype(), values);
    const OwnedTensor out = Poisoned({rows, int64_t{shape_.num_heads} * shape_.head_dim}, dtype());
    const Buffer positions_buffer = Ints(positions), row_seq_buffer = Ints(row_seq);
    const Buffer start_buffer = Ints(query_start), context_buffer = Ints(context_len);
    const Buffer table_buffer = Ints(table), prefix_buffer = Ints(prefix_len);
    const bool masked = std::ranges::any_of(prefix_len, [](int32_t keys) { return keys > 0; });
    BatchView batch;
    batch.num_rows = static_cast<int32_t>(rows);
    batch.num_seqs = static_cast<int32_t>(ranges.size());
    batch.positions = positions_buffer.As<int32_t>();
    batch.row_seq = row_seq_buffer.As<int32_t>();
    batch.query_start = start_buffer.As<int32_t>();
    batch.context_len = context_buffer.As<int32_t>();
    batch.block_table = table_buffer.As<int32_t>();
    batch.max_blocks = kMaxBlocks;
    if (masked) batch.prefix_len = prefix_buffer.As<int32_t>();
    ops().QkvRopeStore(qkv.tensor, {cos_.tensor, sin_.tensor, factors_.tensor}, batch, kv_, kLayer);
    ops().PagedAttention(qkv.tensor, batch, kv_, kLayer, rule_, out.tensor);
    return Bytes(out.tensor);
  }

  std::vector<double> ToDoubles(const std::vector<std::byte>& bytes) {
    std::vector<float> floats(bytes.size() / SizeOf(dtype()));
    const Shape shape{static_cast<int64_t>(floats.size())};
    ConvertElements({const_cast<std::byte*>(bytes.data()), dtype(), shape, {}},
                    {floats.data(), DType::kF32, shape, {}});
    return {floats.begin(), floats.end()};
  }

  double Rounded(double value) {
    std::byte bytes[4];
    float result = static_cast<float>(value);
    ConvertElements({&result, DType::kF32, {1}, {}}, {bytes, dtype(), {1}, {}});
    ConvertElements({bytes, dtype(), {1}, {}}, {&result, DType::kF32, {1}, {}});
    return result;
  }
  // Head `head` of a row, rotated to `position` and rounded as the op stores it.
  std::vector<double> RotatedHead(const std::vector<float>& row, int32_t head, int32_t position) {
    const int32_t half = turned_ / 2;
    std::vector<double> x, result(static_cast<size_t>(shape_.head_dim));
    for (int32_t i = 0; i < shape_.head_dim; ++i) {
      x.push_back(Rounded(row[static_cast<size_t>(int64_t{head} * shape_.head_dim + i)]));
    }
    for (int32_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / turned_);
      result[i] = Rounded(x[i] * std::cos(angle) - x[i + half] * std::sin(angle));
      result[i + half] = Rounded(x[i + half] * std::cos(angle) + x[i] * std::sin(angle));
    }
    for (int32_t i = turned_; i < shape_.head_dim; ++i) result[i] = x[i];
    return result;
  }
  // Attention output of one row, all heads. The row sees the first `prefix` keys in any case.
  std::vector<double> Reference(int32_t seq, int32_t position, int32_t prefix = 0) {
    const int32_t num_keys = std::max(position + 1, prefix);
    const int32_t dim = shape_.head_dim, group = shape_.num_heads / shape_.num_kv_heads;
    std::vector<double> out;
    const std::vector<float> query_row = QkvRow(seq, position);
    for (int32_t head = 0; head < shape_.num_heads; ++head) {
      std::vector<double> q = RotatedHead(query_row, head, position);
      for (double& value : q) value *= QueryFactor(position);
      std::vector<double> scores, result(static_cast<size_t>(dim), 0.0);
      double sum = 0.0;
      for (int32_t key = 0; key < num_keys; ++key) {
        const std::vector<double> k =
            RotatedHead(QkvRow(seq, key), shape_.num_heads + head / group, key);
        double score = 0.0;
        for (int32_t i = 0; i < dim; ++i) score += q[i] * k[i];
        score *= rule_.scale;
        if (rule_.soft_cap > 0) score = rule_.soft_cap * std::tanh(score / rule_.soft_cap);
        if (rule_.slopes != nullptr) score += slopes_[head] * (key - position);
        const bool hidden = (rule_.window > 0 && key <= position - rule_.window) ||
                            (rule_.chunk > 0 && key / rule_.chunk < position / rule_.chunk);
        scores.push_back(hidden ? -HUGE_VAL : score);
      }
      if (rule_.sinks != nullptr) scores.push_back(sinks_[head]);
      const double max = *std::max_element(scores.begin(), scores.end());
      if (rule_.sinks != nullptr) sum = std::exp(sinks_[head] - max);
      for (int32_t key = 0; key < num_keys; ++key) {
        const std::vector<float> row = QkvRow(seq, key);
        const double p = std::exp(scores[key] - max);
        const int32_t base = (shape_.num_heads + shape_.num_kv_heads + head / group) * dim;
        for (int32_t i = 0; i < dim; ++i) result[i] += p * Rounded(row[base + i]);
        sum += p;
      }
      for (const double value : result) out.push_back(value / sum);
    }
    return out;
  }

  void ExpectReference(const std::vector<Range>& ranges, const std::vector<double>& out) {
    std::vector<double> expected;
    for (const Range& range : ranges) {
      for (int32_t p = range.context - range.rows; p < range.context; ++p) {
        const std::vector<double> row = Reference(range.seq, p, range.prefix);
        expected.insert(expected.end(), row.begin(), row.end());
      }
    }
    // A stored key or query may round differently in the reference.
    ExpectNear(out, expected, 4 * Rounding(dtype()) + 1e-5, 1.0);
  }

  // Queries that grow with their position, where the tables say so.
  double QueryFactor(int32_t position) const {
    return queries_grow_ && position / 64 % 2 == 1 ? 0.5 : 1.0;
  }
  void MakeFactors() {
    queries_grow_ = true;
    std::vector<float> factors;
    for (int32_t position = 0; position < kMaxBlocks * shape_.block_tokens; ++position) {
      factors.push_back(static_cast<float>(QueryFactor(position)));
    }
    factors_ = FromFloats({std::ssize(factors)}, DType::kF32, factors);
  }

  AttentionShape shape_{};
  AttentionRule rule_;
  int32_t turned_ = 0;  // elements of a head
  std::vector<float> slopes_;
  std::vector<float> sinks_;
  KvGroup kv_;
  OwnedTensor kv_memory_;
  std::vector<int32_t> tables_;  // [num_seqs, kMaxBlocks]
  OwnedTensor cos_, sin_;
  bool queries_grow_ = false;
  OwnedTensor factors_;  // of queries that grow
};

TEST_P(AttentionTest, MatchesReferenceOverRaggedBatches) {
  const AttentionShape shapes[] = {
      {4, 2, 64, 16}, {3, 3, 16, 7}, {8, 1, 20, 32}, {4, 4, 128, 64}, {2, 1, 6, 5}};
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message()
                 << shape.num_heads << "/" << shape.num_kv_heads << " heads of " << shape.head_dim
                 << ", blocks of " << shape.block_tokens);
    MakeGroup(shape, 4);
    Step({{0, 40, 40}, {1, 1, 1}, {2, 33, 33}});
    // A decode step, a second chunk, a verification and a new prompt in one batch.
    const std::vector<Range> ranges = {{0, 41, 1}, {1, 30, 29}, {2, 38, 5}, {3, 3, 3}};
    const std::vector<double> out = ToDoubles(Step(ranges));
    ExpectReference(ranges, out);
  }
}

TEST_P(AttentionTest, RowsOfAPrefixSeeAllOfIt) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 2, 64, 16}, AttentionShape{3, 3, 20, 7}, AttentionShape{4, 1, 128, 64}}) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, 4);
    // Prompts of which a part, all or nothing is a prefix; then steps after them.
    const std::vector<Range> prompts = {{0, 40, 40, 27}, {1, 9, 9, 9}, {2, 20, 20, 0}};
    ExpectReference(prompts, ToDoubles(Step(prompts)));
    const std::vector<Range> later = {{0, 41, 1, 27}, {1, 14, 5, 9}, {2, 21, 1}, {3, 20, 20, 18}};
    ExpectReference(later, ToDoubles(Step(later)));
  }
}

// Two groups whose layers have other heads: block ids mean the same blocks in both.
TEST_P(AttentionTest, GroupsOfOnePoolShareTheirBlockIds) {
  const AttentionShape shapes[] = {{4, 2, 64, 16}, {6, 3, 20, 16}};
  const std::vector<Range> prompt = {{0, 20, 20}}, next = {{0, 21, 1}};
  KvPool pool;
  std::vector<OwnedTensor> memory;
  std::vector<std::vector<std::byte>> steps;
  for (const AttentionShape& shape : shapes) {
    MakeGroup(shape, 2);
    ExpectReference(prompt, ToDoubles(Step(prompt)));
    steps.push_back(Step(next));
    ExpectReference(next, ToDoubles(steps.back()));
    pool.layers.push_back({static_cast<int32_t>(pool.groups.size()), kLayer});
    pool.groups.push_back(kv_);
    memory.push_back(std::move(kv_memory_));
  }
  // The sequence moves to the blocks of another: a whole one, and the part of one that it has.
  ops().CopyBlock(pool, tables_[0], tables_[kMaxBlocks], 16);
  ops().CopyBlock(pool, tables_[1], tables_[kMaxBlocks + 1], 4);
  std::swap_ranges(tables_.begin(), tables_.begin() + kMaxBlocks, tables_.begin() + kMaxBlocks);
  for (const KvPlace place : pool.layers) {
    UseShape(shapes[place.group]);
    kv_ = pool.groups[static_cast<size_t>(place.group)];
    EXPECT_EQ(Step(next), steps[static_cast<size_t>(place.group)]);
  }
}

class AttentionInvarianceTest : public AttentionTest {};

TEST_P(AttentionInvarianceTest, RowDoesNotDependOnChunkingOrNeighbours) {
  const AttentionShape shapes[] = {{4, 2, 64, 16}, {5, 1, 24, 7}, {3, 3, 32, 48}};
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << "/" << shape.num_kv_heads);
    const int32_t length = 150;
    MakeGroup(shape, 3);
    const std::vector<std::byte> at_once = Step({{0, length, length}});
    const size_t row_bytes = at_once.size() / length;
    const auto expect_rows = [&](const std::vector<std::byte>& rows, size_t offset, int32_t begin,
                                 int32_t count) {
      ASSERT_EQ(
          std::memcmp(rows.data() + offset, at_once.data() + begin * row_bytes, count * row_bytes),
          0)
          << "positions from " << begin;
    };
    // In chunks.
    for (const int32_t chunk : {1, 9, 32, 64}) {
      MakeGroup(shape, 3);
      for (int32_t begin = 0; begin < length; begin += chunk) {
        const int32_t count = std::min(chunk, length - begin);
        expect_rows(Step({{0, begin + count, count}}), 0, begin, count);
      }
    }
    // Among other sequences, before and after it.
    MakeGroup(shape, 3);
    expect_rows(Step({{1, 70, 70}, {0, 100, 100}, {2, 5, 5}}), 70 * row_bytes, 0, 100);
    expect_rows(Step({{2, 6, 1}, {1, 73, 3}, {0, 105, 5}}), 4 * row_bytes, 100, 5);
  }
}

// The largest score comes late and is much larger: earlier sums must lose their weight.
TEST_P(AttentionTest, ScoresFarApartMatchReference) {
  const AttentionShape shape{4, 2, 64, 16};
  const int32_t length = 150, rows = 8;
  MakeGroup(shape, 1);
  rule_.scale = 0.5f;
  const std::vector<std::byte> at_once = Step({{0, length, length}});
  MakeGroup(shape, 1);
  rule_.scale = 0.5f;
  Step({{0, length - rows, length - rows}});
  const std::vector<std::byte> last = Step({{0, length, rows}});
  if (GetParam().batch_invariant) {
    ASSERT_TRUE(std::equal(last.begin(), last.end(), at_once.end() - std::ssize(last)));
  }
  std::vector<double> expected;
  for (int32_t p = length - rows; p < length; ++p) {
    const std::vector<double> row = Reference(0, p);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  ExpectNear(ToDoubles(last), expected, 8 * Rounding(dtype()) + 1e-4, 1.0);
}

// Windows shorter and longer than a tile of keys, and scores that the cap changes much.
TEST_P(AttentionTest, WindowsAndCapsMatchReference) {
  for (const AttentionShape& shape : {AttentionShape{4, 2, 64, 16}, AttentionShape{3, 3, 20, 7}}) {
    for (const AttentionRule& rule :
         {AttentionRule{.window = 1}, AttentionRule{.window = 7},
          AttentionRule{.soft_cap = 2.0f, .window = 35}, AttentionRule{.soft_cap = 5.0f}}) {
      SCOPED_TRACE(::testing::Message() << "window " << rule.window << ", cap " << rule.soft_cap);
      MakeGroup(shape, 3);
      rule_.window = rule.window;
      rule_.soft_cap = rule.soft_cap;
      Step({{0, 40, 40}, {1, 1, 1}});
      const std::vector<Range> ranges = {{0, 41, 1}, {1, 50, 49}, {2, 3, 3}};
      const std::vector<std::byte> out = Step(ranges);
      ExpectReference(ranges, ToDoubles(out));
      // The division into ranges changes nothing.
      Step({{1, 49, 29}});
      const std::vector<std::byte> last = Step({{1, 50, 1}});
      if (GetParam().batch_invariant) {
        const auto size = std::ssize(last);
        EXPECT_TRUE(std::equal(last.begin(), last.end(), out.end() - 4 * size));
      }
      rule_ = {};
    }
  }
}

TEST_P(AttentionTest, SlopesFavourNearKeys) {
  MakeGroup({6, 3, 32, 16}, 2);
  slopes_ = {0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f};
  const OwnedTensor slopes = FromFloats({6}, DType::kF32, slopes_);
  rule_.slopes = slopes.tensor.As<float>();
  Step({{0, 40, 40}});
  const std::vector<Range> ranges = {{0, 42, 2}, {1, 70, 70}};
  ExpectReference(ranges, ToDoubles(Step(ranges)));
  rule_ = {};
}

TEST_P(AttentionTest, ChunksHideWhatLiesBeforeThem) {
  // Shorter and longer than a tile of keys, and than a sequence.
  for (const int32_t chunk : {1, 10, 50, 500}) {
    SCOPED_TRACE(chunk);
    MakeGroup({2, 1, 16, 16}, 2);
    rule_.chunk = chunk;
    const std::vector<std::byte> at_once = Step({{1, 120, 120}});
    Step({{0, 47, 47}});
    const std::vector<Range> ranges = {{0, 55, 8}, {1, 120, 3}};
    const std::vector<std::byte> later = Step(ranges);
    ExpectReference(ranges, ToDoubles(later));
    const auto rows = std::ssize(at_once) / 40;
    EXPECT_TRUE(std::equal(later.end() - rows, later.end(), at_once.end() - rows));
    rule_ = {};
  }
}

TEST_P(AttentionTest, SinksTakeTheirShareOfTheSoftmax) {
  for (const int32_t window : {0, 20}) {
    SCOPED_TRACE(window);
    MakeGroup({4, 2, 16, 16}, 2);
    sinks_ = {-2.0f, 3.0f, 12.0f, -100.0f};
    const OwnedTensor sinks = FromFloats({4}, DType::kF32, sinks_);
    rule_.sinks = sinks.tensor.As<float>();
    rule_.window = window;
    Step({{0, 40, 40}});
    const std::vector<Range> ranges = {{0, 42, 2}, {1, 40, 40}};
    const std::vector<std::byte> out = Step(ranges);
    ExpectReference(ranges, ToDoubles(out));
    const std::vector<std::byte> last = Step({{1, 40, 1}});
    EXPECT_TRUE(std::equal(last.begin(), last.end(), out.end() - std::ssize(last)));
    rule_ = {};
  }
}

// Blocks that no row sees any of have become those of others, and hold NaN here.
TEST_P(AttentionTest, BlocksBeforeAWindowMayHoldAnything) {
  for (const int32_t head_dim : {16, 32, 64, 128}) {
    for (const int32_t context : {113, 121, 150}) {
      for (const int32_t rows : {3, 16, 50}) {
        SCOPED_TRACE(::testing::Message() << head_dim << ", " << context << ", " << rows);
        MakeGroup({4, 2, head_dim, 8}, 2);
        rule_.window = 20;
        Step({{0, context - rows, context - rows}});
        const std::vector<std::byte> expected = Step({{0, context, rows}});
        const std::vector<std::byte> expected_last = Step({{0, context, 1}});
        const int32_t first_seen = (context - rows + 1 - rule_.window) / 8;
        std::copy_n(tables_.begin() + kMaxBlocks, first_seen, tables_.begin());
        EXPECT_TRUE(Step({{0, context, rows}}) == expected);
        EXPECT_TRUE(Step({{0, context, 1}}) == expected_last);
        rule_ = {};
      }
    }
  }
}

TEST_P(AttentionTest, QueriesGrowWithTheirPosition) {
  for (const int32_t turned : {0, 12, 32}) {
    SCOPED_TRACE(turned);
    MakeGroup({2, 1, 32, 16}, 1);
    turned_ = turned;
    MakeRope();
    MakeFactors();
    Step({{0, 60, 60}});
    const std::vector<Range> ranges = {{0, 70, 10}};
    ExpectReference(ranges, ToDoubles(Step(ranges)));
  }
}

TEST_P(AttentionTest, HeadsMayTurnInPart) {
  for (const int32_t turned : {0, 2, 12, 48}) {
    SCOPED_TRACE(turned);
    MakeGroup({4, 2, 64, 16}, 1);
    turned_ = turned;
    MakeRope();
    const std::vector<Range> ranges = {{0, 33, 33}};
    ExpectReference(ranges, ToDoubles(Step(ranges)));
  }
}

// Slots after the context hold NaN here, as they may after a roll-back.
TEST_P(AttentionTest, RejectedDraftsLeaveNoTrace) {
  MakeGroup({4, 2, 32, 16}, 2);
  Step({{0, 20, 20}});
  const std::vector<std::byte> clean = Step({{0, 21, 1}});
  // A verification of 5 wrote positions 20..24; all except the first are rolled back and computed
  // again.
  Step({{0, 25, 5}});
  EXPECT_EQ(Step({{0, 21, 1}}), clean);
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  MakeGroup({2, 1, 16, 16}, 1);
  const OwnedTensor qkv = FromFloats({1, 4 * 16}, dtype(), std::vector<float>(4 * 16, 200.0f));
  const OwnedTensor out = Poisoned({1, 2 * 16}, dtype());
  const Buffer zero = Ints({0}), start = Ints({0, 1}), one = Ints({1}), table = Ints(tables_);
  BatchView batch;
  batch.num_rows = batch.num_seqs = 1;
  batch.positions = batch.row_seq = zero.As<int32_t>();
  batch.query_start = start.As<int32_t>();
  batch.context_len = one.As<int32_t>();
  batch.block_table = table.As<int32_t>();
  batch.max_blocks = kMaxBlocks;
  ops().QkvRopeStore(qkv.tensor, {cos_.tensor, sin_.tensor}, batch, kv_, kLayer);
  ops().PagedAttention(qkv.tensor, batch, kv_, kLayer, {}, out.tensor);
  for (const double value : Doubles(out.tensor)) EXPECT_EQ(value, 200.0);
}

TEST_P(AttentionTest, CopyBlockCopiesLeadingTokensOfAllLayers) {
  MakeGroup({2, 2, 8, 4}, 1);
  const std::vector<float> values = [&] {
    std::vector<float> v(static_cast<size_t>(kv_.data.NumElements()));
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 251);
    return v;
  }();
  kv_memory_ = FromFloats({kv_.data.NumElements()}, dtype(), values);
  kv_.data = kv_memory_.tensor;
  ops().CopyBlock({.groups = {kv_}, .layers = {}}, 3, 7, 2);
  const std::vector<double> result = Doubles(kv_.data);
  const int64_t per_block = kv_.elements_per_block(), per_head = kv_.elements_per_head();
  for (int64_t i = 0; i < kv_.data.NumElements(); ++i) {
    const bool copied = i / per_block == 7 && i % per_head < 2 * kv_.head_dim;
    ASSERT_EQ(result[i], values[copied ? i - 4 * per_block : i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, ::testing::ValuesIn(AllBackendCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, AttentionInvarianceTest,
                         ::testing::ValuesIn(Invariant(AllBackendCases())), CaseName);

}  // namespace
}  // namespace tandem::ops
