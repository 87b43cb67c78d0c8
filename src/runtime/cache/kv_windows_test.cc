// Window blocks of the KvCache: which prefixes are found without them, who owns them, and random
// traffic whose contents are followed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "runtime/cache/kv_cache.h"

namespace tandem {
namespace {

constexpr int32_t kSize = 4;    // tokens of a block
constexpr int32_t kWindow = 6;  // tokens
constexpr int32_t kBlocks = 40;

// A sequence as scheduler and commit treat it.
struct Running {
  std::vector<int32_t> tokens;
  std::vector<BlockId> blocks;
  std::vector<WindowBlockId> windows;
  int32_t first_window = 0;
  int32_t computed = 0;
  int32_t published = 0;
};

class KvWindowsTest : public ::testing::Test {
 protected:
  void Make(int32_t num_windows) {
    kv_ = std::make_unique<KvCache>(KvCacheOptions{.num_blocks = kBlocks,
                                                   .block_tokens = kSize,
                                                   .window_tokens = kWindow,
                                                   .num_window_blocks = num_windows});
    content_.assign(static_cast<size_t>(num_windows), 0);
    window_of_.assign(kBlocks, -1);
  }
  // Starts a sequence from what the tree holds. False if there are too few blocks.
  bool Start(Running& running) {
    PrefixMatch match = kv_->Match(running.tokens);
    EXPECT_EQ(kv_->PeekMatch(running.tokens), match.computed[0]);
    running.blocks = match.blocks;
    running.windows = match.windows;
    running.first_window = match.first_window;
    running.computed = running.published = match.computed[0] - match.partial_tokens;
    if (match.partial_source >= 0) {
      EXPECT_GE(match.source_window, 0);
      const auto whole = static_cast<int32_t>(match.blocks.size());
      EXPECT_EQ(content_[static_cast<size_t>(match.source_window)] >> 32,
                Hash(running.tokens, whole) >> 32)
          << "the block continues the prefix";
      kv_->ReleaseWindows(std::span(&match.partial_source, 1), std::span(&match.source_window, 1));
      kv_->Release(std::span(&match.partial_source, 1));
    }
    // What the next token sees is what was computed.
    EXPECT_LE(running.first_window, kv_->FirstWindowBlock(running.computed));
    for (size_t i = 0; i < running.windows.size(); ++i) {
      const auto block = running.first_window + static_cast<int32_t>(i);
      EXPECT_EQ(content_[static_cast<size_t>(running.windows[i])], Hash(running.tokens, block));
    }
    const auto needed = (std::ssize(running.tokens) + kSize - 1) / kSize;
    if (kv_->Allocate(static_cast<int32_t>(needed - std::ssize(running.blocks)), running.blocks)) {
      return true;
    }
    End(running);
    return false;
  }
  // Computes up to `end` tokens.
  void Compute(Running& running, int32_t end) {
    const auto first = running.first_window + std::ssize(running.windows);
    const auto last = (end + kSize - 1) / kSize;
    if (last > first) {
      kv_->TakeWindows(std::span(running.blocks)
                           .first(static_cast<size_t>(last))
                           .subspan(static_cast<size_t>(first)),
                       running.windows);
    }
    std::vector<WindowMapping> mappings;
    kv_->MoveMappings(mappings);
    for (const WindowMapping& mapping : mappings) {
      window_of_[static_cast<size_t>(mapping.block)] = mapping.window;
    }
    for (size_t i = 0; i < running.windows.size(); ++i) {
      const auto block = running.first_window + static_cast<int32_t>(i);
      EXPECT_EQ(window_of_[static_cast<size_t>(running.blocks[static_cast<size_t>(block)])],
                running.windows[i]);
      if ((block + 1) * kSize > running.computed && block < last) {
        content_[static_cast<size_t>(running.windows[i])] = Hash(running.tokens, block);
      }
    }
    running.computed = end;
    kv_->Publish(std::span(running.tokens).first(static_cast<size_t>(end)), running.blocks,
                 {end, 0}, {running.published, 0});
    running.published = end;
    const int32_t passed = kv_->FirstWindowBlock(end) - running.first_window;
    if (passed <= 0) return;
    ReleaseWindows(running, static_cast<size_t>(passed));
  }
  void ReleaseWindows(Running& running, size_t count) {
    const auto first = static_cast<size_t>(running.first_window);
    kv_->ReleaseWindows(std::span(running.blocks).subspan(first, count),
                        std::span(running.windows).first(count));
    running.windows.erase(running.windows.begin(),
                          running.windows.begin() + static_cast<ptrdiff_t>(count));
    running.first_window += static_cast<int32_t>(count);
  }
  void End(Running& running) {
    ReleaseWindows(running, running.windows.size());
    kv_->Release(running.blocks);
    running = {};
  }
  // Of all tokens up to the end of a block; the upper half of those before it.
  static uint64_t Hash(std::span<const int32_t> tokens, int32_t block) {
    uint64_t hash = 1;
    uint64_t before = 0;
    const auto end = std::min(static_cast<size_t>(block + 1) * kSize, tokens.size());
    for (size_t i = 0; i < end; ++i) {
      if (i == static_cast<size_t>(block) * kSize) before = hash;
      hash = (hash * 1099511628211ULL + static_cast<uint64_t>(tokens[i]) + 1) & 0xffffffff;
    }
    return before << 32 | hash;
  }
  static std::vector<int32_t> Counting(int32_t length, int32_t start = 0) {
    std::vector<int32_t> tokens(static_cast<size_t>(length));
    std::iota(tokens.begin(), tokens.end(), start);
    return tokens;
  }
  Running Run(std::vector<int32_t> tokens) {
    Running running;
    running.tokens = std::move(tokens);
    EXPECT_TRUE(Start(running));
    while (running.computed < std::ssize(running.tokens)) {
      Compute(running,
              std::min(running.computed + kSize, static_cast<int32_t>(running.tokens.size())));
    }
    return running;
  }
  int32_t Found(std::vector<int32_t> tokens) {
    tokens.push_back(1000);
    return kv_->PeekMatch(tokens);
  }

  std::unique_ptr<KvCache> kv_;
  std::vector<uint64_t> content_;   // of each window block
  std::vector<int32_t> window_of_;  // as a device has it
};

TEST_F(KvWindowsTest, ASequenceHoldsWhatItsNextTokenSees) {
  Make(20);
  Running running = Run(Counting(24));
  EXPECT_EQ(running.first_window, 4);  // tokens 19 to 23 are seen by token 24
  EXPECT_EQ(running.windows.size(), 2u);
  EXPECT_EQ(kv_->Stats().referenced_window_blocks, 2);
  End(running);
  EXPECT_EQ(kv_->Stats().referenced_window_blocks, 0);
  kv_->CheckIntegrity();
}

TEST_F(KvWindowsTest, APrefixIsFoundAsFarAsItsWindowsReach) {
  Make(8);
  Running one = Run(Counting(24));
  End(one);
  EXPECT_EQ(Found(Counting(24)), 24);
  EXPECT_EQ(Found(Counting(12)), 12);
  // Another sequence takes two free window blocks, and then those least recently used.
  Running other = Run(Counting(16, 100));
  EXPECT_EQ(Found(Counting(24)), 24);
  EXPECT_EQ(Found(Counting(12)), 0) << "tokens after it see block 1, whose window block is gone";
  End(other);
  kv_->CheckIntegrity();
}

TEST_F(KvWindowsTest, WhatIsComputedAgainIsFoundAgain) {
  Make(8);
  Running one = Run(Counting(24)), other = Run(Counting(16, 100));
  End(one);
  End(other);
  ASSERT_EQ(Found(Counting(12)), 0);
  std::vector<int32_t> tokens = Counting(12);
  tokens.insert(tokens.end(), {50, 51, 52, 53});
  Running again = Run(tokens);
  EXPECT_EQ(Found(Counting(12)), 12);
  kv_->CheckIntegrity();
  End(again);
  EXPECT_EQ(Found(Counting(12)), 12);
  EXPECT_EQ(Found(tokens), 16);
  kv_->CheckIntegrity();
}

TEST_F(KvWindowsTest, RandomTrafficFindsOnlyWhatWasComputed) {
  constexpr int32_t kSequences = 4;
  Make(kSequences * (kWindow / kSize + 3) + 6);
  std::mt19937 random(7);
  const auto draw = [&](int32_t below) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(below));
  };
  std::vector<Running> running;
  int64_t found = 0;
  for (int step = 0; step < 20000; ++step) {
    if (std::ssize(running) < kSequences && draw(3) == 0) {
      Running one;
      // Few different tokens, so that prefixes are shared.
      for (int32_t i = 1 + draw(30); i > 0; --i) one.tokens.push_back(draw(12) == 0 ? 1 : 0);
      if (Start(one)) {
        found += one.computed;
        running.push_back(std::move(one));
      }
    }
    for (size_t i = 0; i < running.size(); ++i) {
      Running& one = running[i];
      const auto rest = static_cast<int32_t>(one.tokens.size()) - one.computed;
      if (rest > 0) Compute(one, one.computed + 1 + draw(std::min(rest, 6)));
      if (rest == 0 || draw(20) == 0) {
        End(one);
        running.erase(running.begin() + static_cast<ptrdiff_t>(i--));
      }
    }
    if (step % 50 == 0) kv_->CheckIntegrity();
    if (HasFailure()) FAIL() << "step " << step;
  }
  EXPECT_GT(found, 10000);
}

}  // namespace
}  // namespace tandem
