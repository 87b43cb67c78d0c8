// A round's look-ups on every backend, and faulty plans.
#include "ops/testing/round_test.h"

namespace tandem::ops {
namespace {

TEST_P(RoundTest, LooksUpTheLongestAndLatestRunThatStoodEarlier) {
  for (const int32_t max_ngram : {1, 2, 4}) {
    Make(60, true, max_ngram);
    plan_.clear();
    blocks_.clear();
    for (int32_t index = 0; index < num_slots(); ++index) {
      Slot slot;
      const int32_t length = Random(1, 50);
      for (int32_t i = 0; i < length; ++i) slot.tokens.push_back(Random(0, 2 + index % 3));
      slot.max_length = kMaxLength - Random(0, 9);
      slot.computed = {length - 1, 0};
      if (index % 4 == 0) slot.ends = {1};
      Start(index, slot);
      AddItem({.slot = index,
               .target_tokens = 1,
               .samples = 1,
               .num_drafts = Random(0, 3),
               .draft_tokens = length},
              1);
    }
    Apply();
    ops().LookUpDrafts(round_, num_slots());
    arena_->Pull();
    for (int32_t index = 0; index < num_slots(); ++index) {
      const Slot& slot = At(index);
      const std::vector<int32_t>& tokens = slot.tokens;
      // The longest suffix that occurs earlier, at the latest such place.
      std::vector<int32_t> expected;
      const int32_t wanted = std::min(plan_[static_cast<size_t>(index)].num_drafts,
                                      slot.max_length - slot.known() - 1);
      for (int32_t n = std::min(max_ngram, slot.known() - 1);
           n >= std::min(max_ngram, 2) && expected.empty() && wanted > 0; --n) {
        for (int32_t end = slot.known() - 1; end >= n; --end) {
          if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + end - n)) continue;
          const int32_t last = std::min(end + wanted, slot.known());
          for (int32_t at = end; at < last && !slot.IsEnd(tokens[static_cast<size_t>(at)]); ++at) {
            expected.push_back(tokens[static_cast<size_t>(at)]);
          }
          n = 0;
          break;
        }
      }
      const SlotRecord& record = arena_->Host(round_.slots.records)[index];
      const int32_t* drafts = arena_->Host(round_.slots.drafts) + index * kMaxDrafts;
      ASSERT_EQ(std::vector<int32_t>(drafts, drafts + record.num_drafts), expected);
      const float* probs = arena_->Host(round_.draft_probs) +
                           plan_[static_cast<size_t>(index)].first_prob_row * kVocab;
      for (const int32_t draft : expected) {
        for (int32_t token = 0; token < kVocab; ++token) {
          ASSERT_EQ(probs[token], token == draft ? 1.0f : 0.0f);
        }
        probs += kVocab;
      }
    }
  }
}

TEST_P(RoundTest, ReportsWhatDoesNotFit) {
  const auto broken = [&](int32_t target_tokens, int32_t draft_tokens, int32_t num_blocks,
                          int32_t num_rows) {
    Make(2);
    Slot slot;
    slot.tokens = {1, 2, 3};
    slot.max_length = 20;
    Start(0, slot);
    plan_.clear();
    blocks_.clear();
    AddItem({.slot = 0,
             .target_tokens = target_tokens,
             .samples = 1,
             .num_drafts = 1,
             .draft_tokens = draft_tokens},
            num_blocks);
    Apply();
    ops().LayDraftRows(round_, {.num_rows = num_rows, .num_seqs = 1, .num_logits = 1});
    ops().LayTargetRows(round_, {.num_rows = num_rows, .num_seqs = 1, .num_logits = 2});
    arena_->Pull();
    return arena_->Host(round_.status)->broken;
  };
  EXPECT_EQ(broken(3, 3, 1, 4), 0);
  EXPECT_EQ(broken(2, 3, 1, 4), kBrokenSamples);
  EXPECT_EQ(broken(3, 2, 1, 4), kBrokenLag);
  EXPECT_EQ(broken(3, 3, kMaxBlocks + 1, 4), kBrokenBlocks);
  EXPECT_EQ(broken(3, 3, 1, 2), kBrokenRows);
}

TEST_P(RoundTest, RowsStandWhereTheirPromptsLayoutSays) {
  Make(2);
  PassArrays& target = round_.target;
  target.prefix_len = arena_->Take<int32_t>(2);
  target.turns = arena_->Take<int32_t>(max_rows_);
  target.second_positions = arena_->Take<int32_t>(max_rows_);
  Slot slot;
  slot.tokens = {5, 6, 7, 8, 9, 10};
  slot.max_length = 20;
  slot.computed = {1, 0};
  slot.layout = {.prefix_len = 4, .mask_position = 2};
  Start(0, slot);
  slot.layout = {.first_turn = 100};
  Start(1, slot);
  for (int32_t index = 0; index < 2; ++index) {
    AddItem({.slot = index, .target_tokens = 5, .samples = 1}, 2);
  }
  Apply();
  ops().LayTargetRows(round_, {.num_rows = 12, .num_seqs = 2, .num_logits = 2});
  arena_->Pull();
  const auto values = [&](const int32_t* array, int32_t count) {
    const int32_t* host = arena_->Host(array);
    return std::vector<int32_t>(host, host + count);
  };
  EXPECT_EQ(values(target.prefix_len, 2), (std::vector<int32_t>{4, 0}));
  EXPECT_EQ(values(target.turns, 12),
            (std::vector<int32_t>{1, 2, 3, 2, 2, 101, 102, 103, 104, 105, 0, 0}));
  EXPECT_EQ(values(target.second_positions, 12),
            (std::vector<int32_t>{0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_P(RoundTest, WindowTablesFollowTheMappings) {
  Make(2);
  round_.slots.window_of = arena_->Take<int32_t>(10000);
  round_.target.window_table = arena_->Take<int32_t>(2 * kMaxBlocks);
  Slot slot;
  slot.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  slot.max_length = 20;
  for (int32_t index = 0; index < 2; ++index) Start(index, slot);
  for (int32_t index = 0; index < 2; ++index) {
    AddItem({.slot = index, .target_tokens = 4}, 3);
  }
  // Some have none yet, and of two for a block the later holds.
  mappings_ = {blocks_[0], 7, blocks_[1], 8, blocks_[4], 3, blocks_[1], 9};
  Apply();
  ops().LayTargetRows(round_, {.num_rows = 8, .num_seqs = 2, .num_logits = 0});
  arena_->Pull();
  const int32_t* windows = arena_->Host(round_.target.window_table);
  EXPECT_EQ(windows[0], 7);
  EXPECT_EQ(windows[1], 9);
  EXPECT_EQ(windows[kMaxBlocks + 1], 3);
  // The next step changes one of them.
  plan_.clear();
  const int32_t moved = blocks_[4];
  blocks_.clear();
  mappings_ = {moved, 5};
  for (int32_t index = 0; index < 2; ++index) AddItem({.slot = index, .target_tokens = 4}, 0);
  Apply();
  ops().LayTargetRows(round_, {.num_rows = 8, .num_seqs = 2, .num_logits = 0});
  arena_->Pull();
  EXPECT_EQ(windows[0], 7);
  EXPECT_EQ(windows[kMaxBlocks + 1], 5);
  EXPECT_EQ(arena_->Host(round_.status)->broken, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, RoundTest, testing::ValuesIn(RoundCases()), CaseName);

}  // namespace
}  // namespace tandem::ops
