// Random use of KvCache by many sequences, compared with a reference that keeps every cached prefix
// in a map and searches all of them. A simulated pool remembers what was written at every position
// of every block, so that a block lost, shared wrongly or evicted in use shows as wrong content.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/cache/kv_cache.h"

namespace tandem {
namespace {

constexpr int32_t kBlockTokens = 3;
constexpr int32_t kBlocks = 40;
constexpr int32_t kAlphabet = 2;  // few tokens: prompts share and diverge everywhere
constexpr int32_t kKeys = 3;      // a prompt under key k has the reference's tokens 2 k and 2 k + 1
constexpr size_t kMaxSequences = 7;
constexpr int32_t kMaxTokens = 24;

using Tokens = std::vector<int32_t>;

// The identity of a model's keys and values at a position: the whole prefix up to there.
uint64_t PrefixHash(const Tokens& tokens, int32_t position) {
  uint64_t hash = 1469598103934665603u;
  for (int32_t i = 0; i <= position; ++i) {
    hash = (hash ^ static_cast<uint64_t>(tokens[static_cast<size_t>(i)] + 1)) * 1099511628211u;
  }
  return hash;
}

struct Sequence {
  int32_t key = 0;
  Tokens tokens;
  std::vector<BlockId> blocks;
  ComputedLengths computed{0, 0};
  ComputedLengths published{0, 0};
};

// The tree by definition: whole-block prefixes, each with its block.
struct CachedPrefix {
  BlockId block = 0;
  int32_t draft_tokens = 0;
  int64_t idle_since = -1;  // -1: in use, or an ancestor of one in use
};

class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) {}

  void Run(int64_t num_ops) {
    for (int64_t op = 0; op < num_ops && !::testing::Test::HasFailure(); ++op) {
      switch (random_() % 8) {
        case 0:
        case 1:
          Start();
          break;
        case 2:
        case 3:
          Compute();
          break;
        case 4:
        case 5:
          Grow();
          break;
        case 6:
          Publish();
          break;
        default:
          Finish();
      }
      CheckCounts();
    }
  }

  int64_t evictions() const { return cache_.Stats().evictions; }
  int64_t hits() const { return hits_; }
  int64_t partial_hits() const { return partial_hits_; }

 private:
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }

  Sequence* AnySequence() {
    if (sequences_.empty()) return nullptr;
    return &sequences_[static_cast<size_t>(Below(static_cast<int64_t>(sequences_.size())))];
  }

  static size_t PoolIndex(BlockId block, int32_t offset) {
    const int32_t index = block * kBlockTokens + offset;
    return static_cast<size_t>(index);
  }

  uint64_t& Written(size_t model, const Sequence& sequence, int32_t position) {
    const BlockId block = sequence.blocks[static_cast<size_t>(position / kBlockTokens)];
    return pool_[model][PoolIndex(block, position % kBlockTokens)];
  }

  void ExpectContent(const Sequence& sequence) {
    for (size_t model = 0; model < kNumModels; ++model) {
      for (int32_t i = 0; i < sequence.computed[model]; ++i) {
        ASSERT_EQ(Written(model, sequence, i), PrefixHash(sequence.tokens, i))
            << "model " << model << ", position " << i;
      }
    }
  }

  int32_t AnyToken(const Sequence& sequence) {
    return static_cast<int32_t>(Below(kAlphabet)) + sequence.key * kAlphabet;
  }
  // The tokens given to the cache: the same under every key.
  static Tokens Shown(const Sequence& sequence) {
    Tokens tokens = sequence.tokens;
    for (int32_t& token : tokens) token %= kAlphabet;
    return tokens;
  }
  static std::string Key(const Sequence& sequence) {
    return sequence.key == 0 ? "" : std::to_string(sequence.key);
  }

  // --- the reference ---

  static Tokens Parent(const Tokens& prefix) {
    return {prefix.begin(), prefix.end() - kBlockTokens};
  }

  bool InUse(BlockId block) const {
    return std::any_of(sequences_.begin(), sequences_.end(), [&](const Sequence& sequence) {
      return std::count(sequence.blocks.begin(), sequence.blocks.end(), block) > 0;
    });
  }

  // Prefixes that are no longer in use, nor ancestors of one in use, get the time; longer ones
  // first. Called after each operation.
  void MarkIdle() {
    std::map<Tokens, bool> held;
    for (const auto& [prefix, cached] : tree_) {
      if (!InUse(cached.block)) continue;
      for (Tokens above = prefix; !above.empty(); above = Parent(above)) held[above] = true;
    }
    std::vector<CachedPrefix*> newly_idle;
    std::vector<size_t> lengths;
    for (auto& [prefix, cached] : tree_) {
      if (held.contains(prefix)) {
        cached.idle_since = -1;
      } else if (cached.idle_since < 0) {
        newly_idle.push_back(&cached);
        lengths.push_back(prefix.size());
      }
    }
    for (size_t length = kMaxTokens; length > 0; --length) {
      for (size_t i = 0; i < newly_idle.size(); ++i) {
        if (lengths[i] == length) newly_idle[i]->idle_since = clock_++;
      }
    }
  }

  void EvictOldestLeaf() {
    auto oldest = tree_.end();
    for (auto it = tree_.begin(); it != tree_.end(); ++it) {
      const auto next = std::next(it);  // in order, a prefix comes right before its continuations
      const bool leaf = next == tree_.end() || next->first.size() <= it->first.size() ||
                        !std::equal(it->first.begin(), it->first.end(), next->first.begin());
      if (!leaf || it->second.idle_since < 0) continue;
      if (oldest == tree_.end() || it->second.idle_since < oldest->second.idle_since) oldest = it;
    }
    ASSERT_NE(oldest, tree_.end());
    tree_.erase(oldest);
  }

  struct Expected {
    std::vector<BlockId> blocks;
    ComputedLengths computed{0, 0};
    int32_t partial_tokens = 0;
  };

  Expected ExpectedMatch(const Tokens& tokens) const {
    Expected expected;
    Tokens prefix;
    const auto usable = static_cast<int32_t>(tokens.size()) - 1;
    bool draft_follows = true;
    const auto extend = [&](const CachedPrefix& cached, int32_t count) {
      expected.computed[0] += count;
      const int32_t draft = std::min(cached.draft_tokens, count);
      if (draft_follows) expected.computed[1] += draft;
      draft_follows = draft_follows && draft == count;
    };
    while (static_cast<int32_t>(prefix.size()) + kBlockTokens <= usable) {
      const auto end = tokens.begin() + static_cast<ptrdiff_t>(prefix.size()) + kBlockTokens;
      const auto it = tree_.find(Tokens(tokens.begin(), end));
      if (it == tree_.end()) break;
      prefix = it->first;
      expected.blocks.push_back(it->second.block);
      extend(it->second, kBlockTokens);
    }
    for (const auto& [candidate, cached] : tree_) {
      if (candidate.size() != prefix.size() + kBlockTokens || Parent(candidate) != prefix) continue;
      const auto start = static_cast<ptrdiff_t>(prefix.size());
      const auto first_different = std::mismatch(candidate.begin() + start, candidate.end(),
                                                 tokens.begin() + start, tokens.begin() + usable)
                                       .first;
      const auto common = static_cast<int32_t>(first_different - candidate.begin() - start);
      expected.partial_tokens = std::max(expected.partial_tokens, common);
    }
    return expected;
  }

  // --- the operations ---

  bool Allocate(Sequence& sequence, int32_t count) {
    const KvCacheStats before = cache_.Stats();
    const int32_t available = cache_.AvailableBlocks();
    const bool done = cache_.Allocate(count, sequence.blocks);
    EXPECT_EQ(done, count <= available);
    if (!done) return false;
    for (int32_t i = before.free_blocks; i < count; ++i) EvictOldestLeaf();
    return true;
  }

  void Start() {
    if (sequences_.size() == kMaxSequences) return;
    Sequence sequence;
    const auto length = 1 + Below(kMaxTokens);
    sequence.key = static_cast<int32_t>(Below(kKeys));
    for (int64_t i = 0; i < length; ++i) sequence.tokens.push_back(AnyToken(sequence));

    const Expected expected = ExpectedMatch(sequence.tokens);
    EXPECT_EQ(cache_.PeekMatch(Shown(sequence), Key(sequence)),
              expected.computed[0] + expected.partial_tokens);
    PrefixMatch match = cache_.Match(Shown(sequence), Key(sequence));
    ASSERT_EQ(match.blocks, expected.blocks);
    ASSERT_EQ(match.partial_tokens, expected.partial_tokens);
    ASSERT_EQ(match.computed[0], expected.computed[0] + expected.partial_tokens);
    ASSERT_GE(match.computed[1], expected.computed[1]);
    ASSERT_LE(match.computed[1], match.computed[0]);
    hits_ += match.blocks.empty() ? 0 : 1;

    const auto whole = static_cast<int32_t>(match.blocks.size());
    sequence.blocks = match.blocks;
    // The reference must see the source in use while blocks are allocated.
    if (match.partial_source >= 0) sequence.blocks.push_back(match.partial_source);
    sequences_.push_back(sequence);
    MarkIdle();
    Sequence fresh;
    const bool room = Allocate(fresh, BlocksFor(length) - whole);
    Sequence& started = sequences_.back();
    started.blocks.resize(static_cast<size_t>(whole));
    if (room) started.blocks.insert(started.blocks.end(), fresh.blocks.begin(), fresh.blocks.end());
    if (room && match.partial_source >= 0) CopyPartial(match, started, whole);
    if (match.partial_source >= 0) cache_.Release({&match.partial_source, 1});
    if (!room) {
      cache_.Release(started.blocks);
      sequences_.pop_back();
    } else {
      started.computed = started.published = match.computed;
      ExpectContent(started);
    }
    MarkIdle();
  }

  static int32_t BlocksFor(int64_t tokens) {
    return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
  }

  void CopyPartial(const PrefixMatch& match, const Sequence& to, int32_t whole) {
    ++partial_hits_;
    for (size_t model = 0; model < kNumModels; ++model) {
      for (int32_t i = 0; i < match.partial_tokens; ++i) {
        Written(model, to, whole * kBlockTokens + i) =
            pool_[model][PoolIndex(match.partial_source, i)];
      }
    }
  }

  void Compute() {
    Sequence* sequence = AnySequence();
    if (sequence == nullptr) return;
    const auto known = static_cast<int64_t>(sequence->tokens.size());
    for (size_t model = 0; model < kNumModels; ++model) {
      const int32_t from = sequence->computed[model];
      const auto to = static_cast<int32_t>(from + Below(known - from + 1));
      for (int32_t i = from; i < to; ++i)
        Written(model, *sequence, i) = PrefixHash(sequence->tokens, i);
      sequence->computed[model] = to;
    }
    ExpectContent(*sequence);
  }

  void Grow() {
    Sequence* sequence = AnySequence();
    if (sequence == nullptr) return;
    const auto known = static_cast<int64_t>(sequence->tokens.size());
    const int64_t more = Below(std::min<int64_t>(kMaxTokens - known, 5) + 1);
    if (!Allocate(*sequence, BlocksFor(known + more) - BlocksFor(known))) return;
    for (int64_t i = 0; i < more; ++i) {
      sequence->tokens.push_back(AnyToken(*sequence));
    }
  }

  void Publish() {
    Sequence* sequence = AnySequence();
    if (sequence == nullptr) return;
    cache_.Publish(Shown(*sequence), sequence->blocks, sequence->computed, sequence->published,
                   Key(*sequence));
    sequence->published = sequence->computed;
    for (int32_t i = 0; (i + 1) * kBlockTokens <= sequence->computed[0]; ++i) {
      const Tokens prefix(sequence->tokens.begin(),
                          sequence->tokens.begin() + (i + 1) * kBlockTokens);
      const BlockId block = sequence->blocks[static_cast<size_t>(i)];
      CachedPrefix& cached = tree_.try_emplace(prefix, CachedPrefix{block}).first->second;
      if (cached.block != block) continue;
      const int32_t draft = std::clamp(sequence->computed[1] - i * kBlockTokens, 0, kBlockTokens);
      cached.draft_tokens = std::max(cached.draft_tokens, draft);
    }
    MarkIdle();
  }

  void Finish() {
    Sequence* sequence = AnySequence();
    if (sequence == nullptr) return;
    ExpectContent(*sequence);
    cache_.Release(sequence->blocks);
    *sequence = sequences_.back();
    sequences_.pop_back();
    MarkIdle();
  }

  void CheckCounts() {
    cache_.CheckIntegrity();
    std::array<bool, kBlocks> used{};
    for (const Sequence& sequence : sequences_) {
      for (const BlockId block : sequence.blocks) used[static_cast<size_t>(block)] = true;
    }
    const auto referenced = std::count(used.begin(), used.end(), true);
    int32_t cached = 0;
    int32_t idle = 0;
    for (const auto& [prefix, node] : tree_) {
      cached += used[static_cast<size_t>(node.block)] ? 0 : 1;
      idle += node.idle_since >= 0 ? 1 : 0;
    }
    const KvCacheStats stats = cache_.Stats();
    ASSERT_EQ(stats.referenced_blocks, referenced);
    ASSERT_EQ(stats.cached_blocks, cached);
    ASSERT_EQ(stats.free_blocks + stats.cached_blocks + stats.referenced_blocks, kBlocks);
    ASSERT_EQ(cache_.AvailableBlocks(), stats.free_blocks + idle);
  }

  std::mt19937_64 random_;
  KvCache cache_{{.num_blocks = kBlocks, .block_tokens = kBlockTokens}};
  std::vector<Sequence> sequences_;
  std::map<Tokens, CachedPrefix> tree_;
  std::array<std::array<uint64_t, kBlocks * kBlockTokens>, kNumModels> pool_{};
  int64_t clock_ = 0;
  int64_t hits_ = 0;
  int64_t partial_hits_ = 0;
};

TEST(KvCacheModel, AgreesWithAReferenceOverRandomUse) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Model model(seed);
    model.Run(250'000);
    EXPECT_GT(model.evictions(), 1000);
    EXPECT_GT(model.hits(), 1000);
    EXPECT_GT(model.partial_hits(), 1000);
  }
}

}  // namespace
}  // namespace tandem
