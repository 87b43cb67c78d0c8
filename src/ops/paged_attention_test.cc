// PagedAttention over pools with given contents: long contexts, ranges of few and of many rows in
// one batch, elements of 8 bits, rules of scores, counts that are upper bounds.
#include <algorithm>
#include <array>

#include "ops/testing/paged_pool.h"

namespace tandem::ops {
namespace {

// Prompts, later chunks of prompts, decode steps and verifications over short and long contexts.
const std::vector<Range> kMixed = {{0, 2100, 1}, {1, 700, 2},  {2, 33, 5},   {3, 1030, 16},
                                   {4, 17, 17},  {5, 300, 64}, {6, 200, 130}};
const std::vector<Range> kVerifications = {{0, 2100, 5}, {1, 3, 1}, {2, 512, 16}, {3, 1025, 2}};
const std::vector<Range> kDecodes = {{0, 2400, 1}, {1, 1, 1}, {2, 513, 1}, {3, 128, 1}};
// Whole prompts and later parts of some, which end before, at and after the borders of tiles.
const std::vector<Range> kPrompts = {{0, 2500, 150}, {1, 385, 385}, {2, 1, 1},
                                     {3, 128, 128},  {4, 129, 127}, {5, 2560, 17}};
constexpr int32_t kSeqs = 7;

std::vector<Range> Joined(std::vector<Range> ranges, const std::vector<Range>& more) {
  ranges.insert(ranges.end(), more.begin(), more.end());
  return ranges;
}
std::vector<Range> Repeated(const std::vector<Range>& ranges, int32_t times) {
  std::vector<Range> all;
  for (int32_t i = 0; i < times; ++i) all = Joined(all, ranges);
  return all;
}

class PagedAttentionTest : public PagedPoolTest {
 protected:
  // So many sequences of 16 rows that a GPU takes another kernel for them than for a few, if a
  // group has 4 heads or more. A CPU takes the same for any number.
  int32_t Crowd() { return backend().device().kind == Device::Kind::kCuda ? 104 : 4; }
  void ExpectMixesMatchReference();
};

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
  const std::vector<Range> many = Repeated(kVerifications, Crowd() / 4);
  Attend(many, {.max_query_len = 16});
  ExpectReference(many);
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
  const AttentionShape shapes[] = {
      {2, 2, 64, 64}, {4, 1, 128, 64}, {8, 1, 64, 96}, {3, 1, 128, 72}};
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kCounting);
    ExpectMixesMatchReference();
  }
}

// Windows that begin before, at and after the borders of tiles and chunks.
TEST_P(PagedAttentionTest, EachRowSeesExactlyItsWindow) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 1, 128, 64}, AttentionShape{8, 1, 64, 96}}) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kCounting);
    for (const Rule& rule : {Rule{.window = 1}, Rule{.window = 100}, Rule{.window = 128},
                             Rule{.window = 513}, Rule{.chunk = 200}, Rule{.chunk = 1024}}) {
      SCOPED_TRACE(rule);
      UseRule(rule);
      ExpectMixesMatchReference();
    }
  }
}

TEST_P(PagedAttentionTest, RulesOfLongContextsMatchReference) {
  const Rule rules[] = {{.window = 700, .soft_cap = 2.0f},
                        {.soft_cap = 3.0f},
                        {.window = 600, .slopes = {0.5f, 0.001f, 0.03f, 0.1f}},
                        {.chunk = 300, .soft_cap = 1.0f},
                        {.window = 90, .sinks = {4.0f, -1.0f, 0.0f, 90.0f}}};
  MakeGroup({4, 1, 128, 64}, kSeqs, dtype());
  FillGroup(Contents::kRandom);
  for (const Rule& rule : rules) {
    SCOPED_TRACE(rule);
    UseRule(rule);
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

// Passes of which nobody waits for one before the next begins, as a draft's: each has the keys of
// those before it and its own, although a GPU begins a kernel before the last one has ended. What
// is read before it is there is NaN.
TEST_P(PagedAttentionTest, PassesEnqueuedTogetherSeeEachOthersKeys) {
  constexpr int32_t kPasses = 6;
  struct Pass {
    OwnedBatch batch;
    std::vector<OwnedTensor> qkv, out;  // of the layers
  };
  struct Shapes {
    AttentionShape shape;
    Rule rule = {};
  };
  for (const auto& [shape, rule] :
       {Shapes{{4, 1, 128, 16}}, Shapes{{8, 2, 64, 16}}, Shapes{{4, 1, 128, 16}, {.chunk = 96}},
        Shapes{{4, 1, 64, 16}, {.window = 1}}}) {
    for (const DType type : AllTypes()) {
      for (const int32_t rows : {1, 5}) {
        SCOPED_TRACE(::testing::Message() << "heads of " << shape.head_dim << ", " << rule << ", "
                                          << DTypeName(type) << ", " << rows << " rows");
        MakeGroup(shape, 4, type);
        MakeTables(kMaxBlocks * shape.block_tokens, shape.head_dim / 2);
        UseRule(rule);
        AttentionRule scaled = rule_;
        scaled.scale = Scale();
        const auto ranges_of = [rows](int32_t pass) {
          return std::vector<Range>{{0, 94 + pass * rows, rows},
                                    {1, 600 + pass * rows, rows},
                                    {2, pass * rows, rows},
                                    {3, 190 + pass * rows, rows}};
        };
        // The positions that no pass has computed yet hold NaN, where the type has one.
        const auto fill = [&] {
          FillGroup(Contents::kRandom);
          std::vector<std::byte> pool = Bytes(kv_.data);
          const size_t bytes = SizeOf(type);
          for (const Range& range : ranges_of(0)) {
            for (int32_t i = 0; i < kPasses * rows * shape.num_kv_heads * 2 * kLayers; ++i) {
              const int32_t position = range.context + i % (kPasses * rows);
              const int32_t plane = i / (kPasses * rows);
              const int64_t at =
                  Offset(range.seq, position, 0, false) +
                  (plane - 2 * kLayer * shape.num_kv_heads) * kv_.elements_per_head();
              std::fill_n(pool.begin() + at * static_cast<int64_t>(bytes),
                          static_cast<size_t>(shape.head_dim) * bytes, std::byte{0xff});
            }
          }
          backend().CopyToDevice(kv_.data.data, pool.data(), pool.size());
        };
        const auto make_passes = [&] {
          fill();
          std::vector<Pass> passes;
          for (int32_t i = 1; i <= kPasses; ++i) {
            Pass& pass =
                passes.emplace_back(MakeBatch(ranges_of(i), {.rows = 1, .max_query_len = rows}));
            for (int32_t layer = 0; layer < kLayers; ++layer) {
              pass.qkv.push_back(MakeQkv(ranges_of(i), 1));
              pass.out.push_back(Poisoned({pass.batch.view.num_rows, OutWidth()}, dtype()));
            }
          }
          return passes;
        };
        const auto enqueue_layer = [&](const Pass& pass, int32_t layer) {
          const auto at = static_cast<size_t>(layer);
          ops().QkvRopeStore(pass.qkv[at].tensor, {cos_.tensor, sin_.tensor}, pass.batch.view, kv_,
                             layer);
          ops().PagedAttention(pass.qkv[at].tensor, pass.batch.view, kv_, layer, scaled,
                               pass.out[at].tensor);
        };
        std::vector<std::vector<std::byte>> expected;
        for (const Pass& pass : make_passes()) {
          for (int32_t layer = 0; layer < kLayers; ++layer) {
            enqueue_layer(pass, layer);
            expected.push_back(Bytes(pass.out[static_cast<size_t>(layer)].tensor));
          }
        }
        const std::vector<Pass> passes = make_passes();
        const auto enqueue = [&] {
          for (const Pass& pass : passes) {
            ops().BeginPass(pass.batch.view);
            for (int32_t layer = 0; layer < kLayers; ++layer) enqueue_layer(pass, layer);
            ops().EndPass();
          }
        };
        // Recorded, the kernels follow each other as closely as they can.
        if (const auto graph = backend().Capture(enqueue); graph != nullptr) {
          backend().Launch(*graph);
        } else {
          enqueue();
        }
        std::vector<std::vector<std::byte>> together;
        for (const Pass& pass : passes) {
          for (const OwnedTensor& out : pass.out) together.push_back(Bytes(out.tensor));
        }
        ASSERT_EQ(together, expected);
        for (const Pass& pass : passes) {
          for (const OwnedTensor& out : pass.out) {
            EXPECT_TRUE(std::ranges::none_of(Doubles(out.tensor.Rows(4 * rows)),
                                             [](double x) { return std::isnan(x); }));
          }
        }
      }
    }
  }
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
    expect({8, 1, 128, 64}, Contents::kRandom);
    expect({3, 1, 128, 72}, Contents::kRandom);
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

// Cuts that leave few and many of a chunk's rows, before and after sequences that decode, of which
// some have no rows in a slice; and padding.
TEST_P(PagedAttentionTest, RowsMayBeAttendedInSlices) {
  struct Case {
    AttentionShape shape;
    Rule rule;
  };
  const auto chunks_of = Joined(kLongChunks, kShortChunks);
  for (const auto& [shape, rule] :
       {Case{{4, 1, 128, 64}, {}}, Case{{8, 4, 64, 64}, {.window = 100}}}) {
    SCOPED_TRACE(::testing::Message() << shape.num_heads << " heads of " << shape.head_dim);
    MakeGroup(shape, kSeqs, dtype());
    FillGroup(Contents::kRandom);
    UseRule(rule);
    const auto expect = [&](const std::vector<Range>& ranges, int32_t max_decode_len) {
      for (const int32_t rows : {16, 33, 128}) {
        SCOPED_TRACE(::testing::Message() << "slices of " << rows << " rows");
        const ChunkBounds chunks = ChunksOf(ranges, max_decode_len);
        Attend(ranges, {rows == 33 ? 5 : 0, rows == 33 ? 3 : 0, LongestOf(ranges), chunks, rows});
        ExpectReference(ranges);
      }
    };
    expect(chunks_of, 0);
    expect({{2, 900, 200}}, 0);
    expect(Joined(Joined(chunks_of, {{1, 0, 0}, {2, 400, 1}, {3, 0, 0}}), chunks_of), 1);
    expect(Joined(Joined(Decoding(7, 5), chunks_of), Decoding(7, 5)), 5);
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
    for (const int32_t max_rows : {1, 4, 7}) {
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
  const std::vector<Range> many = Repeated({{2, 40, 16}}, Crowd());
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
          if (rows > 16) continue;
          const std::vector<std::byte> beside_many =
              Attend(Joined({{1, 1200, 3}, {0, context, rows}}, many), {.max_query_len = 16});
          expect_row(beside_many, 3, context - rows);
          expect_row(beside_many, 2 + rows, context - 1);
        }
      }
    }
  }
}

TEST_P(PagedAttentionInvarianceTest, RowUnderARuleDoesNotDependOnWhatServesIt) {
  constexpr int32_t kLength = 1300;
  MakeGroup({4, 1, 128, 64}, 3, dtype());
  FillGroup(Contents::kRandom);
  for (const int32_t window : {0, 100, 600}) {
    SCOPED_TRACE(::testing::Message() << "window " << window);
    UseRule({.window = window,
             .soft_cap = 2.0f,
             .slopes = {0.25f, 0.001f, 0.0f, 0.0625f},
             .sinks = {1.0f, 0.0f, -3.0f, 2.0f}});
    const std::vector<std::byte> at_once = Attend({{0, kLength, kLength}});
    for (const int32_t context : {31, 701, 1025, kLength}) {
      for (const int32_t rows : {1, 5, 16, 17, 31}) {
        for (const int32_t others : {1, rows <= 16 ? Crowd() : 0}) {
          const std::vector<Range> beside = Repeated({{2, 40, 16}}, others);
          const std::vector<std::byte> out =
              Attend(Joined({{1, 1200, 3}, {0, context, rows}}, beside));
          ASSERT_EQ(std::memcmp(out.data() + 3 * RowBytes(),
                                at_once.data() + (context - rows) * RowBytes(),
                                static_cast<size_t>(rows * RowBytes())),
                    0)
              << rows << " rows of " << context << " beside " << others;
        }
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

INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionTest, ::testing::ValuesIn(AllBackendCases()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionInvarianceTest,
                         ::testing::ValuesIn(Invariant(AllBackendCases())), CaseName);
// Only a GPU takes counts of rows that it does not check.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PagedAttentionFp8Test);
INSTANTIATE_TEST_SUITE_P(Backends, PagedAttentionFp8Test,
                         ::testing::ValuesIn(OnCuda(AllBackendCases())), CaseName);

}  // namespace
}  // namespace tandem::ops
