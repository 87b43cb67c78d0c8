// PagedAttention and QkvRopeStore over pools with given contents: long contexts, ranges of few and
// of many rows in one batch, fp8 elements, counts that are upper bounds.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "ops/testing/op_test.h"
#include "ops/testing/round_to_fp8.h"

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
};

// The excess of a batch's counts over its contents, as in a captured graph.
struct Slack {
  int32_t rows = 0;
  int32_t seqs = 0;
  int32_t max_query_len = 0;
  ChunkBounds chunks = {};
};

// What a batch is told of its chunks, where ranges of up to max_decode_len rows decode.
ChunkBounds ChunksOf(const std::vector<Range>& ranges, int32_t max_decode_len) {
  ChunkBounds chunks{.max_decode_len = max_decode_len, .min_len = 1 << 20};
  for (const Range& range : ranges) {
    if (range.rows <= max_decode_len) continue;
    ++chunks.num_seqs;
    chunks.num_rows += range.rows;
    chunks.num_keys += range.context;
    chunks.min_len = std::min(chunks.min_len, range.rows);
  }
  return chunks;
}
int32_t LongestOf(const std::vector<Range>& ranges) {
  return std::ranges::max_element(ranges, {}, &Range::rows)->rows;
}

// A batch and its memory.
struct OwnedBatch {
  BatchView view;
  std::vector<Buffer> buffers;
};

constexpr int32_t kMaxBlocks = 40;
constexpr int32_t kLayers = 2;
constexpr int32_t kLayer = 1;

enum class Contents {
  kRandom,
  // Queries are zero and the value of position p is the unit vector p % head_dim: an output element
  // counts the visible positions, so that one too many or too few shows.
  kCounting,
};

class PagedAttentionTest : public OpTest {
 protected:
  int64_t Width() const { return (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim; }
  int64_t RowBytes() const {
    return int64_t{shape_.num_heads} * shape_.head_dim * static_cast<int64_t>(SizeOf(dtype()));
  }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  // Elements of int8 are up to 127, those of fp8 here up to 8.
  float KeyScale(int32_t layer, int32_t head) const {
    const float scale = 0.25f + 0.125f * static_cast<float>(layer + head % 3);
    return kv_.data.dtype == DType::kI8 ? 0.1f * scale : scale;
  }
  float ValueScale(int32_t layer, int32_t head) const {
    const float scale = 0.02f * static_cast<float>(1 + layer + head % 5);
    return kv_.data.dtype == DType::kI8 ? 0.1f * scale : scale;
  }
  // First element of a position's key or value.
  int64_t Offset(int32_t seq, int32_t position, int32_t head, bool value) const {
    const int64_t block =
        tables_[static_cast<size_t>(int64_t{seq} * kMaxBlocks + position / shape_.block_tokens)];
    return block * kv_.elements_per_block() +
           ((2 * kLayer + (value ? 1 : 0)) * shape_.num_kv_heads + head) * kv_.elements_per_head() +
           position % shape_.block_tokens * shape_.head_dim;
  }

  // The types of 8 bits in which the backend keeps keys and values.
  std::vector<DType> TypesOf8Bits() {
    std::vector<DType> types = {DType::kF8E4M3, DType::kI8};
    std::erase_if(types, [&](DType type) { return !backend().CheckKvType(type).ok(); });
    return types;
  }
  std::vector<DType> AllTypes() {
    std::vector<DType> types = TypesOf8Bits();
    types.push_back(dtype());
    return types;
  }
  double ElementValue(std::byte element) const {
    if (kv_.data.dtype == DType::kF8E4M3) return Fp8Value(element);
    return static_cast<double>(static_cast<int8_t>(element));
  }

  // From now on scores are subject to it; slopes: of as many heads as a shape has, or none.
  void UseRule(int32_t window, float soft_cap, std::vector<float> slopes) {
    rule_ = {.soft_cap = soft_cap, .window = window};
    slopes_ = std::move(slopes);
    reference_.clear();
    if (slopes_.empty()) return;
    device_slopes_ = FromFloats({std::ssize(slopes_)}, DType::kF32, slopes_);
    rule_.slopes = device_slopes_.tensor.As<float>();
  }

  // A group, and per sequence a table of scattered block ids; its elements are zero. In 8 bits
  // every layer and head has a scale of its own.
  void MakeGroup(const AttentionShape& shape, int32_t num_seqs, DType element) {
    shape_ = shape;
    kv_.num_blocks = num_seqs * kMaxBlocks;
    kv_.num_layers = kLayers;
    kv_.num_kv_heads = shape.num_kv_heads;
    kv_.block_tokens = shape.block_tokens;
    kv_.head_dim = shape.head_dim;
    kv_.data.dtype = element;
    if (kv_.has_8_bits()) {
      std::vector<float> keys, values;
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
          keys.push_back(KeyScale(layer, head));
          values.push_back(ValueScale(layer, head));
        }
      }
      key_scales_ = FromFloats({kLayers, shape.num_kv_heads}, DType::kF32, keys);
      value_scales_ = FromFloats({kLayers, shape.num_kv_heads}, DType::kF32, values);
      kv_.key_scales = key_scales_.tensor;
      kv_.value_scales = value_scales_.tensor;
    } else {
      kv_.key_scales = kv_.value_scales = {};
    }
    tables_.resize(static_cast<size_t>(kv_.num_blocks));
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i] = static_cast<int32_t>(i);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(7));
    const int64_t count = kv_.num_blocks * kv_.elements_per_block();
    kv_memory_ = backend().Allocate(static_cast<size_t>(count) * SizeOf(element)).value();
    kv_.data = kv_memory_.View(element, {count});
  }
  // Fills the pool; elements_ has the values of its elements.
  void FillGroup(Contents contents);

  // Sequence i of the batch is ranges[i].
  OwnedBatch MakeBatch(const std::vector<Range>& ranges, const Slack& slack);
  // The rows that a batch of the ranges attends with, and `slack` rows of zeros.
  OwnedTensor MakeQkv(const std::vector<Range>& ranges, int32_t slack);
  // Attends the ranges; returns the output rows.
  std::vector<std::byte> Attend(const std::vector<Range>& ranges, const Slack& slack = {});
  // Compares the latest result of Attend with sums in double precision.
  void ExpectReference(const std::vector<Range>& ranges);
  // The row's output for the first num_keys keys, computed once: its query depends only on sequence
  // and position. [num_heads * head_dim]
  const std::vector<double>& ReferenceRow(int32_t seq, int32_t position, int32_t num_keys,
                                          const double* query);
  void ExpectMixesMatchReference();

  AttentionShape shape_{};
  Contents contents_ = Contents::kRandom;
  KvGroup kv_;
  Buffer kv_memory_;
  OwnedTensor key_scales_, value_scales_;
  AttentionRule rule_;  // but for the scale
  std::vector<float> slopes_;
  OwnedTensor device_slopes_;
  std::vector<int32_t> prefixes_;  // of the sequences of each batch; empty: no prefix mask
  std::vector<int32_t> tables_;    // [num_seqs, kMaxBlocks]
  std::vector<double> elements_;
  std::vector<double> queries_;  // of the last Attend, as results_
  std::vector<double> results_;  // with the padding
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::vector<double>> reference_;
};

void PagedAttentionTest::FillGroup(Contents contents) {
  contents_ = contents;
  reference_.clear();
  const bool narrow = kv_.has_8_bits(), fp8 = kv_.data.dtype == DType::kF8E4M3;
  const auto count = static_cast<size_t>(kv_.data.NumElements());
  std::minstd_rand rng(11);
  std::uniform_real_distribution<float> uniform(-1.7f, 1.7f);
  std::vector<float> values(count);
  std::vector<std::byte> bytes(narrow ? count : 0);
  // A prime, so that repeated elements are in other places of their heads.
  const size_t num_drawn = std::min<size_t>(count, 65521);
  for (size_t i = 0; i < num_drawn; ++i) {
    if (narrow && !fp8) {
      bytes[i] = static_cast<std::byte>(static_cast<uint32_t>(rng()) % 255 - 127);
    } else if (fp8) {
      // Either sign, from 2^-2 to 2^3.
      const auto random = static_cast<uint32_t>(rng()) >> 8;
      bytes[i] = static_cast<std::byte>((random & 0x87) | (5 + (random >> 8) % 5) << 3);
    } else {
      values[i] = uniform(rng);
    }
  }
  for (size_t i = num_drawn; i < values.size(); ++i) values[i] = values[i - num_drawn];
  for (size_t i = num_drawn; i < bytes.size(); ++i) bytes[i] = bytes[i - num_drawn];
  if (contents == Contents::kCounting) {
    for (int32_t i = 0; i < static_cast<int32_t>(tables_.size()) * shape_.block_tokens; ++i) {
      const int32_t position = i % (kMaxBlocks * shape_.block_tokens);
      const int32_t seq = i / (kMaxBlocks * shape_.block_tokens);
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        const auto at = static_cast<size_t>(Offset(seq, position, head, true));
        for (int32_t e = 0; e < shape_.head_dim; ++e) {
          const bool one = e == position % shape_.head_dim;
          values[at + static_cast<size_t>(e)] = one ? 1.0f : 0.0f;
          const int unit = fp8 ? 0x38 : 1;
          if (narrow) bytes[at + static_cast<size_t>(e)] = static_cast<std::byte>(one ? unit : 0);
        }
      }
    }
  }
  if (!narrow) {
    const Tensor host{values.data(), DType::kF32, kv_.data.shape, {}};
    bytes.resize(static_cast<size_t>(kv_.data.NumBytes()));
    ConvertElements(host, {bytes.data(), kv_.data.dtype, kv_.data.shape, {}});
  }
  backend().CopyToDevice(kv_.data.data, bytes.data(), bytes.size());
  if (!narrow) {
    elements_ = Doubles(kv_.data);
    return;
  }
  elements_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    // Planes follow each other by head, then k and v, then layer.
    const auto plane = static_cast<int32_t>(i / static_cast<size_t>(kv_.elements_per_head()));
    const int32_t head = plane % shape_.num_kv_heads;
    const bool value = plane / shape_.num_kv_heads % 2 != 0;
    const int32_t layer = plane / shape_.num_kv_heads / 2 % kLayers;
    elements_[i] =
        ElementValue(bytes[i]) * (value ? ValueScale(layer, head) : KeyScale(layer, head));
  }
}

OwnedBatch PagedAttentionTest::MakeBatch(const std::vector<Range>& ranges, const Slack& slack) {
  std::vector<int32_t> positions, row_seq, query_start = {0}, context_len, table;
  for (const Range& range : ranges) {
    for (int32_t p = range.context - range.rows; p < range.context; ++p) {
      positions.push_back(p);
      row_seq.push_back(static_cast<int32_t>(context_len.size()));
    }
    query_start.push_back(static_cast<int32_t>(positions.size()));
    context_len.push_back(range.context);
    table.insert(table.end(), tables_.begin() + range.seq * kMaxBlocks,
                 tables_.begin() + (range.seq + 1) * kMaxBlocks);
  }
  // Nothing past the real counts may be used as an address.
  constexpr int32_t kNowhere = 1 << 28;
  for (int32_t i = 0; i < slack.rows; ++i) {
    positions.push_back(kNowhere);
    row_seq.push_back(-1);
  }
  for (int32_t i = 0; i < slack.seqs; ++i) {
    query_start.push_back(query_start.back());
    context_len.push_back(kNowhere);
    table.insert(table.end(), kMaxBlocks, kNowhere);
  }
  OwnedBatch batch;
  const auto device = [&](const std::vector<int32_t>& values) {
    batch.buffers.push_back(Ints(values));
    return batch.buffers.back().As<int32_t>();
  };
  batch.view.num_rows = static_cast<int32_t>(positions.size());
  batch.view.num_seqs = static_cast<int32_t>(context_len.size());
  batch.view.max_query_len = slack.max_query_len;
  batch.view.chunks = slack.chunks;
  batch.view.positions = device(positions);
  batch.view.row_seq = device(row_seq);
  batch.view.query_start = device(query_start);
  batch.view.context_len = device(context_len);
  batch.view.block_table = device(table);
  batch.view.max_blocks = kMaxBlocks;
  if (!prefixes_.empty()) {
    std::vector<int32_t> prefixes(prefixes_.begin(), prefixes_.begin() + std::ssize(ranges));
    prefixes.insert(prefixes.end(), static_cast<size_t>(slack.seqs), kNowhere);
    batch.view.prefix_len = device(prefixes);
  }
  return batch;
}

OwnedTensor PagedAttentionTest::MakeQkv(const std::vector<Range>& ranges, int32_t slack) {
  int64_t rows = slack;
  for (const Range& range : ranges) rows += range.rows;
  std::vector<float> values(static_cast<size_t>(rows * Width()), 0.0f);
  if (contents_ == Contents::kRandom) {
    // A row's query depends only on its sequence and position.
    auto value = values.begin();
    for (const Range& range : ranges) {
      for (int32_t p = range.context - range.rows; p < range.context; ++p) {
        std::minstd_rand rng(static_cast<uint32_t>(range.seq * 100003 + p + 1));
        std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
        for (int64_t i = 0; i < Width(); ++i) *value++ = uniform(rng);
      }
    }
  }
  return FromFloats({rows, Width()}, dtype(), values);
}

std::vector<std::byte> PagedAttentionTest::Attend(const std::vector<Range>& ranges,
                                                  const Slack& slack) {
  const OwnedBatch batch = MakeBatch(ranges, slack);
  const int64_t rows = batch.view.num_rows;
  const OwnedTensor qkv = MakeQkv(ranges, slack.rows);
  const OwnedTensor out = Poisoned({rows, int64_t{shape_.num_heads} * shape_.head_dim}, dtype());
  AttentionRule rule = rule_;
  rule.scale = Scale();
  ops().PagedAttention(qkv.tensor, batch.view, kv_, kLayer, rule, out.tensor);
  queries_ = Doubles(qkv.tensor);
  results_ = Doubles(out.tensor);
  return Bytes(out.tensor);
}

const std::vector<double>& PagedAttentionTest::ReferenceRow(int32_t seq, int32_t position,
                                                            int32_t num_keys, const double* query) {
  std::vector<double>& expected = reference_[{seq, position, num_keys}];
  if (!expected.empty()) return expected;
  const int64_t dim = shape_.head_dim;
  const int32_t group = shape_.num_heads / shape_.num_kv_heads;
  std::vector<double> weights, sums;
  const int32_t first_key = rule_.window == 0 ? 0 : std::max(position - rule_.window + 1, 0);
  for (int32_t head = 0; head < shape_.num_heads; ++head) {
    const double* q = query + head * dim;
    weights.clear();
    for (int32_t key = first_key; key < num_keys; ++key) {
      const double* k = elements_.data() + Offset(seq, key, head / group, false);
      double score = 0.0;
      for (int64_t i = 0; i < dim; ++i) score += q[i] * k[i];
      score *= Scale();
      const double cap = rule_.soft_cap;
      if (cap > 0.0) score = cap * std::tanh(score / cap);
      if (!slopes_.empty()) score += slopes_[static_cast<size_t>(head)] * (key - position);
      weights.push_back(score);
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    sums.assign(static_cast<size_t>(dim), 0.0);
    for (int32_t key = first_key; key < num_keys; ++key) {
      const double weight = std::exp(weights[static_cast<size_t>(key - first_key)] - max);
      const double* v = elements_.data() + Offset(seq, key, head / group, true);
      for (int64_t i = 0; i < dim; ++i) sums[static_cast<size_t>(i)] += weight * v[i];
      sum += weight;
    }
    for (const double value : sums) expected.push_back(value / sum);
  }
  return expected;
}

void PagedAttentionTest::ExpectReference(const std::vector<Range>& ranges) {
  std::vector<double> expected, actual;
  const auto width = int64_t{shape_.num_heads} * shape_.head_dim;
  int64_t row = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    const int32_t prefix = prefixes_.empty() ? 0 : std::min(prefixes_[i], range.context);
    for (int32_t p = range.context - range.rows; p < range.context; ++p, ++row) {
      // The reference of random contents takes long: every fifth row, and each range's last.
      const bool compared =
          contents_ == Contents::kCounting || row % 5 == 0 || p + 1 == range.context;
      if (!compared) continue;
      const std::vector<double>& of_row =
          ReferenceRow(range.seq, p, std::max(p + 1, prefix), queries_.data() + row * Width());
      expected.insert(expected.end(), of_row.begin(), of_row.end());
      const auto result = results_.begin() + row * width;
      actual.insert(actual.end(), result, result + width);
    }
  }
  if (contents_ == Contents::kCounting) {
    ExpectNear(actual, expected, 1.01 * Rounding(dtype()) + 1e-5, 1e-3);
  } else {
    // Weights are rounded to the activations' type before they multiply the values.
    ExpectNear(actual, expected, 2 * Rounding(dtype()) + 1e-5, 0.5);
  }
}

// Prompts, later chunks of prompts, decode steps and verifications over short and long contexts.
const std::vector<Range> kMixed = {{0, 2100, 1}, {1, 700, 2},  {2, 33, 5},   {3, 1030, 16},
                                   {4, 17, 17},  {5, 300, 64}, {6, 200, 130}};
const std::vector<Range> kVerifications = {{0, 2100, 5}, {1, 3, 1}, {2, 512, 16}, {3, 1025, 2}};
const std::vector<Range> kDecodes = {{0, 2400, 1}, {1, 1, 1}, {2, 513, 1}, {3, 128, 1}};
// Whole prompts and later parts of some, which end before, at and after the borders of tiles.
const std::vector<Range> kPrompts = {{0, 2500, 150}, {1, 385, 385}, {2, 1, 1},
                                     {3, 128, 128},  {4, 129, 127}, {5, 2560, 17}};
constexpr int32_t kSeqs = 7;

void PagedAttentionTest::ExpectMixesMatchReference() {
  Attend(kMixed);
  ExpectReference(kMixed);
  for (const int32_t decode : {1, 5}) {
    Attend(kMixed, {.max_query_len = 130, .chunks = ChunksOf(kMixed, decode)});
    ExpectReference(kMixed);
  }
  Attend(kPrompts);
  ExpectReference(kPrompts);
  Attend(kVerifications, {.max_query_len = 16});
  ExpectReference(kVerifications);
  Attend(kDecodes, {.max_query_len = 1});
  ExpectReference(kDecodes);
  Attend({kDecodes[0]}, {.max_query_len = 1});
  ExpectReference({kDecodes[0]});
}

TEST_P(PagedAttentionTest, LongContextsMatchReference) {
  const AttentionShape shapes[] = {{1, 1, 128, 64}, {8, 2, 64, 64}, {8, 1, 128, 64}};
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kRandom);
    ExpectMixesMatchReference();
  }
}

TEST_P(PagedAttentionTest, EachRowSeesExactlyItsKeys) {
  const AttentionShape shapes[] = {{2, 2, 64, 64}, {4, 1, 128, 64}, {8, 1, 64, 96}};
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kCounting);
    ExpectMixesMatchReference();
  }
}

// Windows that begin before, at and after the borders of tiles and chunks.
TEST_P(PagedAttentionTest, EachRowSeesExactlyItsWindow) {
  if (!backend().Has(Feature::kAttentionRule)) GTEST_SKIP() << "not on this backend";
  for (const AttentionShape& shape :
       {AttentionShape{4, 1, 128, 64}, AttentionShape{8, 1, 64, 96}}) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kCounting);
    for (const int32_t window : {1, 100, 128, 513}) {
      SCOPED_TRACE(::testing::Message() << "window " << window);
      UseRule(window, 0.0f, {});
      ExpectMixesMatchReference();
    }
  }
}

TEST_P(PagedAttentionTest, RulesOfLongContextsMatchReference) {
  if (!backend().Has(Feature::kAttentionRule)) GTEST_SKIP() << "not on this backend";
  struct Rule {
    int32_t window;
    float soft_cap;
    std::vector<float> slopes;
  };
  const Rule rules[] = {
      {700, 2.0f, {}}, {0, 3.0f, {}}, {600, 0.0f, {0.5f, 0.001f, 0.03f, 0.1f}}, {90, 1.0f, {}}};
  MakeGroup({4, 1, 128, 64}, kSeqs, dtype());
  FillGroup(Contents::kRandom);
  for (const Rule& rule : rules) {
    SCOPED_TRACE(::testing::Message() << "window " << rule.window << ", cap " << rule.soft_cap);
    UseRule(rule.window, rule.soft_cap, rule.slopes);
    ExpectMixesMatchReference();
  }
}

TEST_P(PagedAttentionTest, RowsOfAPrefixSeeExactlyIt) {
  const AttentionShape shapes[] = {{2, 2, 64, 64}, {4, 1, 128, 64}, {8, 1, 64, 96}, {3, 1, 20, 16}};
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kCounting);
    // Within the rows, before them, after all of them (which ends with the context), none.
    const int32_t longest = kMaxBlocks * shape.block_tokens;
    for (const std::vector<int32_t>& prefixes :
         {std::vector<int32_t>{2090, 699, 31, 1020, 9, 270, 150},
          std::vector<int32_t>{0, 1 << 20, 1 << 20, 1 << 20, 17, 300, 70}}) {
      prefixes_ = prefixes;
      std::vector<Range> mixed;
      for (const Range& range : kMixed) {
        mixed.push_back(range);
        mixed.back().context = std::min(range.context, longest);
      }
      Attend(mixed);
      ExpectReference(mixed);
      Attend(mixed, {.rows = 5, .seqs = 3, .max_query_len = 200});
      ExpectReference(mixed);
      const std::vector<Range> verifications(mixed.begin() + 1, mixed.begin() + 4);
      Attend(verifications, {.max_query_len = 16});
      ExpectReference(verifications);
    }
  }
}

// Models have layers of several shapes; passes follow each other over the same arrays, whose
// lengths change, enqueued directly and from a recording.
TEST_P(PagedAttentionTest, LayersOfAPassGiveTheBitsOfSingleCalls) {
  struct Layer {
    AttentionShape shape;
    KvGroup kv;
    Buffer memory;
  };
  std::vector<Layer> layers;
  for (const AttentionShape& shape : {AttentionShape{4, 1, 128, 64}, AttentionShape{8, 2, 64, 64},
                                      AttentionShape{8, 1, 128, 64}}) {
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kRandom);
    layers.push_back({shape_, kv_, std::move(kv_memory_)});
  }
  struct Lengths {
    std::vector<Range> ranges;
    Slack slack;
  };
  struct Pass {
    OwnedBatch batch;
    std::vector<OwnedTensor> qkv;                  // of the layers
    std::vector<std::vector<std::byte>> expected;  // likewise
  };
  const auto set_layer = [&](const Layer& layer) {
    shape_ = layer.shape;
    kv_ = layer.kv;
  };
  const auto expect = [&](const std::vector<Lengths>& lengths) {
    std::vector<Pass> passes;
    for (const auto& [ranges, slack] : lengths) {
      Pass& pass = passes.emplace_back(MakeBatch(ranges, slack));
      ASSERT_EQ(pass.batch.view.num_rows, passes[0].batch.view.num_rows);
      ASSERT_EQ(pass.batch.view.num_seqs, passes[0].batch.view.num_seqs);
      for (const Layer& layer : layers) {
        set_layer(layer);
        pass.qkv.push_back(MakeQkv(ranges, slack.rows));
        pass.expected.push_back(Attend(ranges, slack));
      }
    }
    // The arrays and inputs of the passes that are enqueued, and their results: the layers twice.
    const OwnedBatch batch = MakeBatch(lengths[0].ranges, lengths[0].slack);
    std::vector<OwnedTensor> qkv, out;
    for (size_t i = 0; i < 2 * layers.size(); ++i) {
      const AttentionShape& shape = layers[i % layers.size()].shape;
      qkv.push_back(Poisoned(passes[0].qkv[i % layers.size()].tensor.shape, dtype()));
      out.push_back(
          Poisoned({batch.view.num_rows, int64_t{shape.num_heads} * shape.head_dim}, dtype()));
    }
    const auto copy = [&](const Buffer& from, const Buffer& to) {
      std::vector<std::byte> bytes(from.bytes());
      backend().CopyToHost(bytes.data(), from.data(), bytes.size());
      backend().CopyToDevice(to.data(), bytes.data(), bytes.size());
    };
    const auto enqueue = [&] {
      ops().BeginPass(batch.view);
      for (size_t i = 0; i < qkv.size(); ++i) {
        set_layer(layers[i % layers.size()]);
        ops().PagedAttention(qkv[i].tensor, batch.view, kv_, kLayer, {Scale()}, out[i].tensor);
      }
      ops().EndPass();
    };
    const auto graph = backend().Capture(enqueue);
    for (const bool recorded : {false, true}) {
      if (recorded && graph == nullptr) continue;
      for (const Pass& pass : passes) {
        SCOPED_TRACE(::testing::Message() << "pass " << &pass - passes.data() << ", the first of "
                                          << lengths[0].ranges.size()
                                          << (recorded ? " sequences, recorded" : " sequences"));
        for (size_t i = 0; i < batch.buffers.size(); ++i) {
          copy(pass.batch.buffers[i], batch.buffers[i]);
        }
        for (size_t i = 0; i < qkv.size(); ++i)
          copy(pass.qkv[i % layers.size()].buffer, qkv[i].buffer);
        for (const OwnedTensor& one : out) {
          const std::vector<std::byte> poison(one.buffer.bytes(), std::byte{0xff});
          backend().CopyToDevice(one.buffer.data(), poison.data(), poison.size());
        }
        if (recorded) {
          backend().Launch(*graph);
        } else {
          enqueue();
        }
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(Bytes(out[i].tensor), pass.expected[i % layers.size()]) << "layer " << i;
        }
      }
    }
  };
  // Decoding: one sequence, short and long; several, some of which have ended.
  expect({{{{0, 2400, 1}}, {.max_query_len = 1}},
          {{{1, 30, 1}}, {.max_query_len = 1}},
          {{{2, 2500, 1}}, {.max_query_len = 1}}});
  expect({{{{0, 2400, 1}, {1, 1, 1}, {2, 513, 1}, {3, 128, 1}}, {2, 1, 1}},
          {{{3, 700, 1}, {0, 0, 0}, {2, 1030, 1}, {4, 16, 1}}, {3, 1, 1}}});
  // Verification.
  expect({{{{0, 2100, 5}, {1, 3, 1}, {2, 512, 16}, {3, 1025, 2}}, {.max_query_len = 16}},
          {{{3, 40, 16}, {0, 2300, 3}, {2, 512, 4}, {1, 1, 1}}, {.max_query_len = 16}}});
  // Chunks of prompts, short and long, beside what decodes.
  const ChunkBounds chunks = {
      .num_seqs = 2, .max_decode_len = 1, .num_rows = 80, .min_len = 4, .num_keys = 1500};
  expect({{{{0, 2100, 1}, {1, 700, 1}, {2, 300, 9}, {3, 1030, 64}}, {5, 1, 64, chunks}},
          {{{4, 17, 4}, {2, 1400, 60}, {6, 20, 1}, {0, 2500, 1}}, {14, 1, 64, chunks}}});
}

TEST_P(PagedAttentionTest, APoolOf8BitsMatchesReferenceOnStoredValues) {
  const AttentionShape odd{4, 2, 20, 64};
  for (const DType element : TypesOf8Bits()) {
    const auto expect = [&](const AttentionShape& shape, Contents contents) {
      SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim
                                        << " in " << DTypeName(element));
      MakeGroup(shape, kSeqs, element);
      FillGroup(contents);
      ExpectMixesMatchReference();
    };
    expect({4, 2, 64, 64}, Contents::kRandom);
    expect({2, 1, 128, 64}, Contents::kRandom);
    expect(odd, Contents::kRandom);
    expect(odd, Contents::kCounting);
  }
}

class PagedAttentionFp8Test : public PagedAttentionTest {};

// A plan that does not fit the state lays rows without a context: the step must still end, since it
// is the step that tells. On a host that comes first.
TEST_P(PagedAttentionFp8Test, RowsWithoutAContextEndToo) {
  MakeGroup({4, 1, 128, 64}, kSeqs, DType::kF8E4M3);
  FillGroup(Contents::kRandom);
  Attend({{0, 300, 20}, {1, 0, 40}, {2, 200, 130}}, {.max_query_len = 130});
}

TEST_P(PagedAttentionTest, CountsMayBeUpperBounds) {
  for (const int32_t num_heads : {2, 8}) {
    MakeGroup({num_heads, 1, 64, 64}, kSeqs, dtype());
    FillGroup(Contents::kRandom);
    for (const Slack& slack : {Slack{5, 3, 16}, Slack{40, 60, 0}, Slack{3, 1, 200}}) {
      for (const auto& ranges : {kDecodes, kVerifications, kMixed}) {
        if (slack.max_query_len == 16 && ranges.size() == kMixed.size()) continue;
        Attend(ranges, slack);
        for (const double value : results_) ASSERT_TRUE(std::isfinite(value));
        ExpectReference(ranges);
      }
    }
  }
}

// `count` sequences that decode or verify 1 to max_rows tokens, of contexts short and long.
std::vector<Range> Decoding(int32_t count, int32_t max_rows) {
  std::vector<Range> ranges;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t context = std::array{17, 300, 64, 129, 513, 31, 1100}[static_cast<size_t>(i % 7)];
    ranges.push_back({i % kSeqs, context + i / kSeqs, 1 + i % max_rows});
  }
  return ranges;
}

// Chunks on both sides of the border between short and long ranges, whole prompts and later parts.
const std::vector<Range> kShortChunks = {{0, 2, 2}, {1, 900, 5}, {2, 16, 16}, {3, 700, 15}};
const std::vector<Range> kLongChunks = {{4, 17, 17}, {5, 400, 31}, {6, 128, 128}, {0, 200, 65}};

std::vector<Range> Joined(std::vector<Range> ranges, const std::vector<Range>& more) {
  ranges.insert(ranges.end(), more.begin(), more.end());
  return ranges;
}

TEST_P(PagedAttentionTest, ChunksMayBeToldApart) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 1, 128, 64}, AttentionShape{8, 4, 64, 64}}) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kRandom);
    const auto expect = [&](const std::vector<Range>& ranges, const Slack& slack) {
      SCOPED_TRACE(::testing::Message()
                   << ranges.size() << " sequences, up to " << slack.max_query_len
                   << " rows, decoding " << slack.chunks.max_decode_len);
      Attend(ranges, slack);
      for (const double value : results_) ASSERT_TRUE(std::isfinite(value));
      ExpectReference(ranges);
    };
    const auto expect_told = [&](const std::vector<Range>& ranges, int32_t max_decode_len) {
      const ChunkBounds chunks = ChunksOf(ranges, max_decode_len);
      expect(ranges, {0, 0, LongestOf(ranges), chunks});
      // Upper bounds, and padding.
      expect(ranges, {5,
                      3,
                      LongestOf(ranges) + 9,
                      {chunks.num_seqs + 2, max_decode_len, chunks.num_rows + 50,
                       std::max(chunks.min_len - 3, 1), chunks.num_keys + 300}});
    };
    for (const auto& chunks : {kShortChunks, kLongChunks, Joined(kLongChunks, kShortChunks)}) {
      expect_told(chunks, 0);
      // Before and after what decodes, some of which has ended.
      expect_told(Joined(Joined(chunks, {{1, 0, 0}, {2, 400, 1}, {3, 0, 0}}), chunks), 1);
    }
    for (const int32_t max_rows : {1, 5, 20}) {
      expect_told(Joined(Joined(Decoding(7, max_rows), kShortChunks), kLongChunks), max_rows);
    }
    // A chunk that turned out to be no longer than what decodes.
    expect({{0, 900, 1}, {1, 300, 2}, {2, 40, 1}}, {0, 0, 40, {1, 2, 40, 40, 40}});
    expect({{0, 900, 3}, {1, 300, 1}}, {0, 0, 40, {2, 0, 60, 1, 1200}});
  }
}

TEST_P(PagedAttentionTest, PromptsMatchReferenceInWhateverMemoryThereIs) {
  for (const AttentionShape& shape :
       {AttentionShape{6, 2, 64, 64}, AttentionShape{3, 3, 128, 64}}) {
    for (const DType element : AllTypes()) {
      MakeGroup(shape, kSeqs, element);
      FillGroup(Contents::kRandom);
      for (const bool masked : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << shape.num_heads << " heads of " << shape.head_dim << ", a pool of "
                     << DTypeName(element) << (masked ? ", prefix masks" : ""));
        prefixes_ =
            masked ? std::vector<int32_t>{2400, 0, 1, 128, 65, 2560} : std::vector<int32_t>{};
        Attend(kPrompts);
        ExpectReference(kPrompts);
        if (backend().device().kind == Device::Kind::kCpu) continue;
        // With bounds that leave room for two kv heads of 128 at a time, for one, and for none.
        ChunkBounds chunks = ChunksOf(kPrompts, 1);
        for (const int64_t keys : {200'000, 350'000, 4'000'000}) {
          SCOPED_TRACE(::testing::Message() << "at most " << keys << " keys");
          chunks.num_keys = keys;
          Attend(kPrompts, {.rows = 2, .seqs = 1, .max_query_len = 385, .chunks = chunks});
          ExpectReference(kPrompts);
        }
      }
    }
  }
}

// As many sequences as a large batch has: beside chunks they are cut and stored as without.
TEST_P(PagedAttentionTest, ManyDecodingSequencesGiveTheSameBitsBesideChunks) {
  MakeGroup({4, 1, 64, 64}, kSeqs, dtype());
  FillGroup(Contents::kRandom);
  for (const int32_t count : {1, 3, 512}) {
    for (const int32_t max_rows : {1, 4}) {
      SCOPED_TRACE(::testing::Message() << count << " sequences of up to " << max_rows << " rows");
      const std::vector<Range> decoding = Decoding(count, max_rows);
      const std::vector<std::byte> alone = Attend(decoding, {.max_query_len = max_rows});
      ExpectReference(decoding);
      for (const auto& chunks : {std::vector<Range>{kLongChunks[2]}, kLongChunks, kShortChunks}) {
        const std::vector<Range> ranges = Joined(decoding, chunks);
        const std::vector<std::byte> beside = Attend(
            ranges, {.max_query_len = LongestOf(ranges), .chunks = ChunksOf(ranges, max_rows)});
        // The chunks of max_rows and less decode too, and keys are then shared out otherwise.
        if (ChunksOf(ranges, max_rows).num_seqs < std::ssize(chunks)) continue;
        ASSERT_EQ(std::memcmp(beside.data(), alone.data(), alone.size()), 0);
      }
    }
  }
}

class PagedAttentionInvarianceTest : public PagedAttentionTest {};

// The kernels for few, some and many rows, and any division of the keys, give the same bits.
TEST_P(PagedAttentionInvarianceTest, RowDoesNotDependOnWhatServesIt) {
  constexpr int32_t kLength = 1300;
  for (const DType element : AllTypes()) {
    for (const AttentionShape& shape :
         {AttentionShape{4, 1, 64, 64}, AttentionShape{8, 1, 128, 64}}) {
      SCOPED_TRACE(::testing::Message()
                   << DTypeName(element) << " " << shape.num_heads << " of " << shape.head_dim);
      MakeGroup(shape, 3, element);
      FillGroup(Contents::kRandom);
      prefixes_ = {};
      const std::vector<std::byte> at_once = Attend({{0, kLength, kLength}});
      const auto expect_row = [&](const std::vector<std::byte>& rows, int32_t row,
                                  int32_t position) {
        ASSERT_EQ(
            std::memcmp(rows.data() + row * RowBytes(), at_once.data() + position * RowBytes(),
                        static_cast<size_t>(RowBytes())),
            0)
            << "position " << position;
      };
      for (const int32_t context : {1, 31, 64, 512, 513, 1025, kLength}) {
        SCOPED_TRACE(::testing::Message() << "context " << context);
        expect_row(Attend({{0, context, 1}}, {.max_query_len = 1}), 0, context - 1);
        expect_row(Attend({{1, 900, 1}, {0, context, 1}, {2, 40, 1}}, {.max_query_len = 1}), 1,
                   context - 1);
        for (const int32_t rows : {2, 5, 16, 17, 40}) {
          if (rows > context) continue;
          const std::vector<std::byte> out = Attend({{1, 1200, 3}, {0, context, rows}, {2, 40, 1}});
          expect_row(out, 3, context - rows);
          expect_row(out, 2 + rows, context - 1);
        }
      }
    }
  }
}

TEST_P(PagedAttentionInvarianceTest, RowUnderARuleDoesNotDependOnWhatServesIt) {
  if (!backend().Has(Feature::kAttentionRule)) GTEST_SKIP() << "not on this backend";
  constexpr int32_t kLength = 1300;
  MakeGroup({4, 1, 128, 64}, 3, dtype());
  FillGroup(Contents::kRandom);
  for (const int32_t window : {0, 100, 600}) {
    SCOPED_TRACE(::testing::Message() << "window " << window);
    UseRule(window, 2.0f, {0.25f, 0.001f, 0.0f, 0.0625f});
    const std::vector<std::byte> at_once = Attend({{0, kLength, kLength}});
    for (const int32_t context : {31, 701, 1025, kLength}) {
      for (const int32_t rows : {1, 5, 16, 17, 31}) {
        const std::vector<std::byte> out = Attend({{1, 1200, 3}, {0, context, rows}, {2, 40, 1}});
        ASSERT_EQ(
            std::memcmp(out.data() + 3 * RowBytes(), at_once.data() + (context - rows) * RowBytes(),
                        static_cast<size_t>(rows * RowBytes())),
            0)
            << rows << " rows of " << context;
      }
    }
  }
}

TEST_P(PagedAttentionInvarianceTest, RowUnderAPrefixMaskDoesNotDependOnWhatServesIt) {
  constexpr int32_t kLength = 1300, kPrefix = 700;
  MakeGroup({4, 1, 128, 64}, 3, dtype());
  FillGroup(Contents::kRandom);
  prefixes_ = {kPrefix};
  const std::vector<std::byte> at_once = Attend({{0, kLength, kLength}});
  for (const int32_t context : {kPrefix, 701, 1025, kLength}) {
    for (const int32_t rows : {1, 5, 16, 17, 40}) {
      prefixes_ = {300, kPrefix, 0};
      const std::vector<std::byte> out = Attend({{1, 1200, 3}, {0, context, rows}, {2, 40, 1}});
      ASSERT_EQ(
          std::memcmp(out.data() + 3 * RowBytes(), at_once.data() + (context - rows) * RowBytes(),
                      static_cast<size_t>(rows * RowBytes())),
          0)
          << rows << " rows of " << context;
    }
  }
}

class QkvRopeStoreTest : public PagedAttentionTest {
 protected:
  // Tables of turns by 0.1 * (position + 1) * (i + 1), for heads that are turned in `parts`.
  void MakeTables(int32_t positions, int32_t parts = 1) {
    const int32_t half = shape_.head_dim / parts / 2;
    std::vector<float> cos, sin;
    for (int32_t position = 0; position < positions; ++position) {
      for (int32_t i = 0; i < half; ++i) {
        cos.push_back(static_cast<float>(std::cos(Angle(position, i))));
        sin.push_back(static_cast<float>(std::sin(Angle(position, i))));
      }
    }
    cos_ = FromFloats({positions, half}, DType::kF32, cos);
    sin_ = FromFloats({positions, half}, DType::kF32, sin);
  }
  static double Angle(int32_t position, int32_t i) { return 0.1 * (position + 1) * (i + 1); }
  void Store(const Tensor& qkv, const OwnedBatch& batch) {
    ops().QkvRopeStore(qkv, {cos_.tensor, sin_.tensor}, batch.view, kv_, kLayer);
  }

  OwnedTensor cos_, sin_;
};

TEST_P(QkvRopeStoreTest, PaddingIsNeitherStoredNorRotated) {
  const AttentionShape shape{4, 2, 64, 16};
  const std::vector<Range> ranges = {{0, 3, 3}, {1, 2, 2}};
  MakeGroup(shape, 2, dtype());
  MakeTables(16);
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

TEST_P(QkvRopeStoreTest, HalvesTurnByPositionsOfTheirOwn) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 2, 64, 16}, AttentionShape{3, 1, 20, 5}, AttentionShape{2, 2, 128, 8}}) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, 2, dtype());
    const std::vector<int32_t> masks = {4, 9};
    const std::vector<Range> ranges = {{0, 8, 7}, {1, 3, 3}};
    const std::vector<int32_t> positions = {1, 2, 3, 4, 5, 6, 7, 0, 1, 2};
    const std::vector<int32_t> second = {0, 0, 0, 0, 1, 2, 3, 15, 0, 7};
    const Buffer mask_buffer = Ints(masks), second_buffer = Ints(second);
    for (const auto& [parts, masked] : {std::pair(1, true), {2, false}, {2, true}}) {
      MakeTables(16, parts);
      OwnedBatch batch = MakeBatch(ranges, {});
      if (masked) batch.view.mask_position = mask_buffer.As<int32_t>();
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
        const int32_t turns[] = {
            masked ? std::min(position, masks[static_cast<size_t>(seq)]) : position,
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
      MakeTables(16);
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
    MakeTables(16);
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

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionTest, ::testing::ValuesIn(AllBackendCases()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, QkvRopeStoreTest, ::testing::ValuesIn(AllBackendCases()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionInvarianceTest,
                         ::testing::ValuesIn(Invariant(AllBackendCases())), CaseName);
// Only a GPU takes counts of rows that it does not check.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PagedAttentionFp8Test);
INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionFp8Test,
                         ::testing::ValuesIn(OnCuda(AllBackendCases())), CaseName);

}  // namespace
}  // namespace tandem::ops
