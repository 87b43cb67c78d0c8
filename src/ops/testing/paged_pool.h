// Pools of keys and values with given contents, batches over them, and attention summed in double
// precision: what the tests of paged attention share. Owned by the test, used by its thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/batch_slice.h"
#include "ops/testing/op_test.h"
#include "ops/testing/round_to_fp8.h"

namespace tandem::ops {

struct AttentionShape {
  int32_t num_heads, num_kv_heads, head_dim, block_tokens;
  int32_t latent_dim = 0;  // as KvGroup
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
  int32_t slice_rows = 0;  // Attend cuts the batch into slices of this many rows; 0: it does not
};

// What a batch is told of its chunks, where ranges of up to max_decode_len rows decode.
inline ChunkBounds ChunksOf(const std::vector<Range>& ranges, int32_t max_decode_len) {
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
inline int32_t LongestOf(const std::vector<Range>& ranges) {
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
  // Queries are zero and the value of position p is the unit vector p % value_dim: an output
  // element counts the visible positions, so that one too many or too few shows.
  kCounting,
};

// An AttentionRule but for the scale; slopes and sinks: of as many heads as a shape has, or none.
struct Rule {
  int32_t window = 0;
  int32_t chunk = 0;
  float soft_cap = 0.0f;
  std::vector<float> slopes = {};
  std::vector<float> sinks = {};
};
inline std::ostream& operator<<(std::ostream& out, const Rule& rule) {
  return out << "window " << rule.window << ", chunk " << rule.chunk << ", cap " << rule.soft_cap
             << (rule.slopes.empty() ? "" : ", slopes") << (rule.sinks.empty() ? "" : ", sinks");
}

class PagedPoolTest : public OpTest {
 protected:
  int64_t Width() const {
    const int32_t kv_heads = shape_.latent_dim == 0 ? 2 * shape_.num_kv_heads : 0;
    return int64_t{shape_.num_heads + kv_heads} * shape_.head_dim;
  }
  int64_t OutWidth() const { return int64_t{shape_.num_heads} * kv_.value_dim(); }
  int64_t RowBytes() const { return OutWidth() * static_cast<int64_t>(SizeOf(dtype())); }
  // Latents of 8 bits have no scale that makes them smaller.
  float Scale() const {
    const float smaller = shape_.latent_dim > 0 && kv_.has_8_bits() ? 0.25f : 1.0f;
    return smaller / std::sqrt(static_cast<float>(shape_.head_dim));
  }
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
           ((kv_.planes() * kLayer + (value ? kv_.planes() - 1 : 0)) * shape_.num_kv_heads + head) *
               kv_.elements_per_head() +
           position % shape_.block_tokens * shape_.head_dim;
  }

  // Rotary tables of turns by Angle for the positions before `positions`.
  static double Angle(int32_t position, int32_t pair) { return 0.1 * (position + 1) * (pair + 1); }
  void MakeTables(int32_t positions, int32_t pairs) {
    std::vector<float> cos, sin;
    for (int32_t position = 0; position < positions; ++position) {
      for (int32_t pair = 0; pair < pairs; ++pair) {
        cos.push_back(static_cast<float>(std::cos(Angle(position, pair))));
        sin.push_back(static_cast<float>(std::sin(Angle(position, pair))));
      }
    }
    cos_ = FromFloats({positions, pairs}, DType::kF32, cos);
    sin_ = FromFloats({positions, pairs}, DType::kF32, sin);
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

  // From now on scores are subject to it.
  void UseRule(const Rule& rule) {
    host_rule_ = rule;
    rule_ = {.soft_cap = rule.soft_cap, .window = rule.window, .chunk = rule.chunk};
    reference_.clear();
    if (!rule.slopes.empty()) {
      slopes_ = FromFloats({std::ssize(rule.slopes)}, DType::kF32, rule.slopes);
      rule_.slopes = slopes_.tensor.As<float>();
    }
    if (!rule.sinks.empty()) {
      sinks_ = FromFloats({std::ssize(rule.sinks)}, DType::kF32, rule.sinks);
      rule_.sinks = sinks_.tensor.As<float>();
    }
  }
  int32_t FirstKey(int32_t position) const {
    if (rule_.chunk > 0) return position / rule_.chunk * rule_.chunk;
    return rule_.window == 0 ? 0 : std::max(position - rule_.window + 1, 0);
  }

  // A group, and per sequence a table of scattered block ids; its elements are zero. In 8 bits
  // every layer and head has a scale of its own, unless it holds latents.
  void MakeGroup(const AttentionShape& shape, int32_t num_seqs, DType element) {
    shape_ = shape;
    kv_.num_blocks = num_seqs * kMaxBlocks;
    kv_.num_layers = kLayers;
    kv_.num_kv_heads = shape.num_kv_heads;
    kv_.block_tokens = shape.block_tokens;
    kv_.head_dim = shape.head_dim;
    kv_.latent_dim = shape.latent_dim;
    kv_.data.dtype = element;
    if (kv_.has_8_bits() && shape.latent_dim == 0) {
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
  // and position. [num_heads * value_dim]
  const std::vector<double>& ReferenceRow(int32_t seq, int32_t position, int32_t num_keys,
                                          const double* query);

  AttentionShape shape_{};
  Contents contents_ = Contents::kRandom;
  KvGroup kv_;
  Buffer kv_memory_;
  OwnedTensor key_scales_, value_scales_;
  Rule host_rule_;
  AttentionRule rule_;  // but for the scale
  OwnedTensor slopes_, sinks_;
  OwnedTensor cos_, sin_;
  std::vector<int32_t> prefixes_;  // of the sequences of each batch; empty: no prefix mask
  std::vector<int32_t> tables_;    // [num_seqs, kMaxBlocks]
  std::vector<double> elements_;
  std::vector<double> queries_;  // of the last Attend, as results_
  std::vector<double> results_;  // with the padding
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::vector<double>> reference_;
};

inline void PagedPoolTest::FillGroup(Contents contents) {
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
        for (int32_t e = 0; e < kv_.value_dim(); ++e) {
          const bool one = e == position % kv_.value_dim();
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
    const float scale = value ? ValueScale(layer, head) : KeyScale(layer, head);
    elements_[i] = ElementValue(bytes[i]) * (shape_.latent_dim == 0 ? scale : 1.0f);
  }
}

inline OwnedBatch PagedPoolTest::MakeBatch(const std::vector<Range>& ranges, const Slack& slack) {
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

inline OwnedTensor PagedPoolTest::MakeQkv(const std::vector<Range>& ranges, int32_t slack) {
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

inline std::vector<std::byte> PagedPoolTest::Attend(const std::vector<Range>& ranges,
                                                    const Slack& slack) {
  const OwnedBatch batch = MakeBatch(ranges, slack);
  const int64_t rows = batch.view.num_rows;
  const OwnedTensor qkv = MakeQkv(ranges, slack.rows);
  const OwnedTensor out = Poisoned({rows, OutWidth()}, dtype());
  AttentionRule rule = rule_;
  rule.scale = Scale();
  if (slack.slice_rows == 0) {
    ops().PagedAttention(qkv.tensor, batch.view, kv_, kLayer, rule, out.tensor);
  } else {
    const Buffer arrays =
        Ints(std::vector<int32_t>(2 * static_cast<size_t>(batch.view.num_seqs) + 1));
    for (int32_t first = 0; first < rows; first += slack.slice_rows) {
      const BatchSlice slice = {
          .first_row = first,
          .num_rows = std::min(slack.slice_rows, static_cast<int32_t>(rows) - first),
          .query_start = arrays.As<int32_t>(),
          .context_len = arrays.As<int32_t>() + batch.view.num_seqs + 1};
      ops().LaySlice(batch.view, slice);
      const BatchView view = SliceOf(batch.view, slice);
      ops().BeginPass(view);
      ops().PagedAttention(qkv.tensor.RowRange(first, view.num_rows), view, kv_, kLayer, rule,
                           out.tensor.RowRange(first, view.num_rows));
      ops().EndPass();
    }
  }
  queries_ = Doubles(qkv.tensor);
  results_ = Doubles(out.tensor);
  return Bytes(out.tensor);
}

inline const std::vector<double>& PagedPoolTest::ReferenceRow(int32_t seq, int32_t position,
                                                              int32_t num_keys,
                                                              const double* query) {
  std::vector<double>& expected = reference_[{seq, position, num_keys}];
  if (!expected.empty()) return expected;
  const int64_t dim = shape_.head_dim, value_dim = kv_.value_dim();
  const int32_t group = shape_.num_heads / shape_.num_kv_heads;
  std::vector<double> weights, sums;
  const int32_t first_key = FirstKey(position);
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
      if (rule_.slopes != nullptr) {
        score += host_rule_.slopes[static_cast<size_t>(head)] * (key - position);
      }
      weights.push_back(score);
    }
    double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    if (rule_.sinks != nullptr) {
      const double sink = host_rule_.sinks[static_cast<size_t>(head)];
      max = std::max(max, sink);
      sum = std::exp(sink - max);
    }
    sums.assign(static_cast<size_t>(value_dim), 0.0);
    for (int32_t key = first_key; key < num_keys; ++key) {
      const double weight = std::exp(weights[static_cast<size_t>(key - first_key)] - max);
      const double* v = elements_.data() + Offset(seq, key, head / group, true);
      for (int64_t i = 0; i < value_dim; ++i) sums[static_cast<size_t>(i)] += weight * v[i];
      sum += weight;
    }
    for (const double value : sums) expected.push_back(value / sum);
  }
  return expected;
}

inline void PagedPoolTest::ExpectReference(const std::vector<Range>& ranges) {
  std::vector<double> expected, actual;
  const int64_t width = OutWidth();
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

}  // namespace tandem::ops
