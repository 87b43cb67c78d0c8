// Random use of KvCache by many sequences, compared with a reference that keeps every cached prefix
// in a map and searches all of them. A simulated pool remembers what was written at every position
// of every block, on the device and on the host, so that a block lost, shared wrongly, evicted in
// use or copied too early or too late shows as wrong content.
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
  bool fresh = false;  // started in the plan that is being made
  Tokens tokens;
  std::vector<BlockId> blocks;
  ComputedLengths computed{0, 0};
  ComputedLengths published{0, 0};
};

// The tree by definition: whole-block prefixes, each with its block.
struct CachedPrefix {
  BlockId block = 0;  // -1: on the host
  int32_t draft_tokens = 0;
  int64_t idle_since = -1;  // -1: in use, or an ancestor of one in use
  bool on_host() const { return block < 0; }
};

class Model {
 public:
  Model(uint64_t seed, int32_t num_host_blocks)
      : random_(seed),
        cache_({.num_blocks = kBlocks,
                .block_tokens = kBlockTokens,
                .num_host_blocks = num_host_blocks}),
        host_free_(num_host_blocks) {
    for (auto& pool : host_pool_) pool.resize(static_cast<size_t>(num_host_blocks * kBlockTokens));
  }

  void Run(int64_t num_ops) {
    for (int64_t op = 0; op < num_ops && !::testing::Test::HasFailure(); ++op) {
      if (Below(2) == 0) EndPlan();
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
  KvCacheStats stats() const { return cache_.Stats(); }
  int64_t partial_hits_on_host() const { return partial_hits_on_host_; }

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
      const auto held_now =
          std::ranges::count(pinned_, prefix) + std::ranges::count(sources_, prefix);
      if (!InUse(cached.block) && held_now == 0) continue;
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

  // The idle prefix of a place that has been there longest, of those without a continuation there
  // (of the host: anywhere); the end if there is none.
  std::map<Tokens, CachedPrefix>::iterator OldestLeaf(bool on_host) {
    auto oldest = tree_.end();
    for (auto it = tree_.begin(); it != tree_.end(); ++it) {
      if (it->second.on_host() != on_host || it->second.idle_since < 0) continue;
      const bool leaf = std::none_of(tree_.begin(), tree_.end(), [&](const auto& other) {
        return other.first.size() == it->first.size() + kBlockTokens &&
               Parent(other.first) == it->first && (on_host || !other.second.on_host());
      });
      if (!leaf) continue;
      if (oldest == tree_.end() || it->second.idle_since < oldest->second.idle_since) oldest = it;
    }
    return oldest;
  }

  void EvictOldestLeaf() {
    const auto evicted = OldestLeaf(false);
    ASSERT_NE(evicted, tree_.end());
    if (host_free_ > 0) {
      --host_free_;
    } else if (const auto lost = OldestLeaf(true); lost != tree_.end()) {
      tree_.erase(lost);
    } else {
      tree_.erase(evicted);
      return;
    }
    evicted->second.block = -1;
    evicted->second.idle_since = clock_++;
  }

  struct Expected {
    std::vector<BlockId> blocks;
    std::vector<Tokens> on_host;
    ComputedLengths computed{0, 0};
    int32_t partial_tokens = 0;
    Tokens partial;  // the whole prefix whose last block has them
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
      if (it->second.on_host()) {
        expected.on_host.push_back(prefix);
      } else {
        EXPECT_TRUE(expected.on_host.empty()) << "a block on the device after one on the host";
        expected.blocks.push_back(it->second.block);
      }
      extend(it->second, kBlockTokens);
    }
    // Of those that share as many tokens the first one after the prompt, else the last before it.
    const Tokens prompt(tokens.begin(), tokens.begin() + usable);
    for (const auto& [candidate, cached] : tree_) {
      if (candidate.size() != prefix.size() + kBlockTokens || Parent(candidate) != prefix) continue;
      const auto start = static_cast<ptrdiff_t>(prefix.size());
      const auto first_different = std::mismatch(candidate.begin() + start, candidate.end(),
                                                 prompt.begin() + start, prompt.end())
                                       .first;
      const auto common = static_cast<int32_t>(first_different - candidate.begin() - start);
      if (common == 0 || common < expected.partial_tokens) continue;
      if (common == expected.partial_tokens && !(expected.partial < prompt)) continue;
      expected.partial_tokens = common;
      expected.partial = candidate;
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
    sequence.fresh = true;
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
    ASSERT_EQ(match.on_host.size(), expected.on_host.size());
    ASSERT_EQ(match.num_whole(), static_cast<int32_t>(expected.blocks.size()) +
                                     static_cast<int32_t>(expected.on_host.size()));
    hits_ += match.num_whole() > 0 ? 1 : 0;

    // The reference must see what is matched in use while blocks are allocated.
    const size_t unpinned = pinned_.size();
    pinned_.insert(pinned_.end(), expected.on_host.begin(), expected.on_host.end());
    const bool partial_on_host = match.partial_on_host >= 0;
    if (match.partial_tokens > 0) {
      ASSERT_EQ(tree_.at(expected.partial).block, match.partial_source);
      (partial_on_host ? pinned_ : sources_).push_back(expected.partial);
    }
    sequence.blocks = match.blocks;
    sequences_.push_back(sequence);
    MarkIdle();
    const int32_t needed = BlocksFor(length) - static_cast<int32_t>(match.blocks.size());
    const int32_t available = cache_.AvailableBlocks();
    if (needed > available) {
      const bool match_had_source = match.partial_source >= 0;
      cache_.Drop(match);
      pinned_.resize(unpinned);
      if (match_had_source) sources_.pop_back();
      sequences_.pop_back();
      MarkIdle();
      return;
    }
    Onboard(match, expected, sequences_.back());
    Sequence& started = sequences_.back();
    Allocate(started, BlocksFor(length) - static_cast<int32_t>(started.blocks.size()));
    started.computed = started.published = match.computed;
    if (match.partial_tokens > 0) {
      const BlockId to = started.blocks[static_cast<size_t>(match.num_whole())];
      if (match.partial_on_host >= 0) {
        ++partial_hits_on_host_;
        cache_.CopyFromHost(match.partial_on_host, to);
      } else {
        ++partial_hits_;
        copies_.push_back({match.partial_source, to, match.partial_tokens});
      }
    }
    MarkIdle();
  }

  void Onboard(const PrefixMatch& match, const Expected& expected, Sequence& sequence) {
    int32_t free = cache_.Stats().free_blocks;
    cache_.Onboard(match.on_host, sequence.blocks);
    for (size_t i = 0; i < expected.on_host.size(); ++i) {
      if (free-- <= 0) EvictOldestLeaf();
      CachedPrefix& cached = tree_.at(expected.on_host[i]);
      ASSERT_TRUE(cached.on_host());
      cached.block = sequence.blocks[match.blocks.size() + i];
      ++host_leaving_;
    }
  }

  // The copies run: in their order, or all those to the host first, which their list allows.
  void EndPlan() {
    std::vector<HostCopy> plan;
    cache_.MoveHostCopies(plan);
    std::vector<bool> read(host_pool_[0].size()), written(kBlocks);
    for (const HostCopy& copy : plan) {
      if (copy.to_host) {
        ASSERT_FALSE(read[static_cast<size_t>(copy.host)]) << "a copy to the host waits for others";
        ASSERT_FALSE(written[static_cast<size_t>(copy.block)]);
      } else {
        read[static_cast<size_t>(copy.host)] = true;
        written[static_cast<size_t>(copy.block)] = true;
      }
    }
    if (Below(2) == 0) {
      std::ranges::stable_partition(plan, [](const HostCopy& copy) { return copy.to_host; });
    }
    for (const HostCopy& copy : plan) {
      for (size_t model = 0; model < kNumModels; ++model) {
        for (int32_t i = 0; i < kBlockTokens; ++i) {
          uint64_t& host = host_pool_[model][PoolIndex(copy.host, i)];
          uint64_t& device = pool_[model][PoolIndex(copy.block, i)];
          (copy.to_host ? host : device) = copy.to_host ? device : host;
        }
      }
    }
    for (const Copy& copy : copies_) {
      for (size_t model = 0; model < kNumModels; ++model) {
        for (int32_t i = 0; i < copy.tokens; ++i) {
          pool_[model][PoolIndex(copy.to, i)] = pool_[model][PoolIndex(copy.from, i)];
        }
      }
    }
    host_free_ += host_leaving_;
    host_leaving_ = 0;
    while (!pinned_.empty()) {
      pinned_.erase(pinned_.begin());
      MarkIdle();
    }
    while (!sources_.empty()) {
      const BlockId source = tree_.at(sources_.front()).block;
      sources_.erase(sources_.begin());
      cache_.Release({&source, 1});
      MarkIdle();
    }
    copies_.clear();
    for (Sequence& sequence : sequences_) {
      sequence.fresh = false;
      ExpectContent(sequence);
    }
  }

  static int32_t BlocksFor(int64_t tokens) {
    return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
  }

  void Compute() {
    EndPlan();
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
    EndPlan();
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
      if (cached.on_host()) {
        cached = {block};
        ++host_leaving_;
      }
      if (cached.block != block) continue;
      const int32_t draft = std::clamp(sequence->computed[1] - i * kBlockTokens, 0, kBlockTokens);
      cached.draft_tokens = std::max(cached.draft_tokens, draft);
    }
    MarkIdle();
  }

  void Finish() {
    Sequence* sequence = AnySequence();
    if (sequence == nullptr) return;
    if (sequence->fresh) EndPlan();
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
    for (const Tokens& source : sources_) {
      used[static_cast<size_t>(tree_.at(source).block)] = true;
    }
    const auto referenced = std::count(used.begin(), used.end(), true);
    int32_t cached = 0;
    int32_t idle = 0;
    int32_t on_host = 0;
    for (const auto& [prefix, node] : tree_) {
      on_host += node.on_host() ? 1 : 0;
      if (node.on_host()) continue;
      cached += used[static_cast<size_t>(node.block)] ? 0 : 1;
      idle += node.idle_since >= 0 ? 1 : 0;
    }
    const KvCacheStats stats = cache_.Stats();
    ASSERT_EQ(stats.referenced_blocks, referenced);
    ASSERT_EQ(stats.cached_blocks, cached);
    ASSERT_EQ(stats.free_blocks + stats.cached_blocks + stats.referenced_blocks, kBlocks);
    ASSERT_EQ(cache_.AvailableBlocks(), stats.free_blocks + idle);
    ASSERT_EQ(stats.used_host_blocks, on_host);
  }

  struct Copy {
    BlockId from = 0;
    BlockId to = 0;
    int32_t tokens = 0;
  };

  std::mt19937_64 random_;
  KvCache cache_;
  std::vector<Sequence> sequences_;
  std::map<Tokens, CachedPrefix> tree_;
  std::array<std::array<uint64_t, kBlocks * kBlockTokens>, kNumModels> pool_{};
  // The plan that is being made: prefixes that copies between device and host hold, sources of
  // copies on the device, and those copies.
  std::vector<Tokens> pinned_;
  std::vector<Tokens> sources_;
  std::vector<Copy> copies_;
  std::array<std::vector<uint64_t>, kNumModels> host_pool_;
  int32_t host_free_ = 0;
  int32_t host_leaving_ = 0;  // free when the plan is made
  int64_t clock_ = 0;
  int64_t hits_ = 0;
  int64_t partial_hits_ = 0;
  int64_t partial_hits_on_host_ = 0;
};

TEST(KvCacheModel, AgreesWithAReferenceOverRandomUse) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Model model(seed, /*num_host_blocks=*/0);
    model.Run(250'000);
    EXPECT_GT(model.stats().evictions, 1000);
    EXPECT_EQ(model.stats().offloads, 0);
    EXPECT_GT(model.hits(), 1000);
    EXPECT_GT(model.partial_hits(), 1000);
  }
}

TEST(KvCacheModel, AgreesWithAReferenceWithBlocksOfTheHost) {
  for (const int32_t num_host_blocks : {1, 4, 30, 200}) {
    SCOPED_TRACE(num_host_blocks);
    Model model(static_cast<uint64_t>(num_host_blocks), num_host_blocks);
    model.Run(60'000);
    EXPECT_GT(model.stats().offloads, 1000);
    EXPECT_GT(model.stats().onboards, 100);
    EXPECT_GT(model.hits(), 1000);
    EXPECT_GT(model.partial_hits(), 200);
    EXPECT_GT(model.partial_hits_on_host(), 100);
  }
}

}  // namespace
}  // namespace tandem
