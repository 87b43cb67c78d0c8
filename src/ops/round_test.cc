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
INSTANTIATE_TEST_SUITE_P(Backends, RoundTest, testing::ValuesIn(RoundCases()), CaseName);

}  // namespace
}  // namespace tandem::ops
