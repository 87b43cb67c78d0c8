#include "runtime/execution/rank_messages.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

BatchPlan SomePlan() {
  BatchPlan plan;
  plan.step = 41;
  plan.sequences = {{.slot = 3, .target_tokens = 7, .samples = true, .first_new_block = 0},
                    {.slot = 1, .target_tokens = 1, .num_drafts = 4, .num_new_blocks = 2}};
  plan.blocks = {9, 8};
  plan.copies = {{.from = 1, .to = 2, .tokens = 3}};
  plan.mappings = {{.block = 5, .window = 6}};
  plan.host_copies = {{.block = 4, .host = 7, .to_host = true}};
  return plan;
}

SlotInit SomeInit(std::span<const float> logits) {
  SlotInit init;
  init.prompt_tokens = 3;
  init.max_length = 99;
  init.computed = {2, 1};
  init.layouts[1].prefix_len = 5;
  init.sampling.temperature = 0.5f;
  init.sampling.seed = 1234567890123;
  init.tokens = {10, 11, 12};
  init.constrained = true;
  init.lists = {7, 8};
  init.num_end_ids = 2;
  init.sent_drafts = {13};
  init.sent_threshold = 0.25f;
  init.sent_logits = logits;
  return init;
}

TEST(RankMessages, APlanIsReadAsItWasWritten) {
  const BatchPlan plan = SomePlan();
  RankMessage message;
  WriteStep(plan, message);
  RankOrder order;
  order.plan.blocks = {1, 2, 3};  // of a message before
  ASSERT_TRUE(ReadMessage(message, order).ok());
  EXPECT_EQ(order.call, RankCall::kStep);
  EXPECT_EQ(order.plan.step, plan.step);
  EXPECT_EQ(order.plan.blocks, plan.blocks);
  EXPECT_EQ(order.plan.mappings, plan.mappings);
  EXPECT_EQ(order.plan.host_copies, plan.host_copies);
  ASSERT_EQ(order.plan.copies.size(), 1u);
  EXPECT_EQ(order.plan.copies[0].to, 2);
  ASSERT_EQ(order.plan.sequences.size(), 2u);
  EXPECT_TRUE(order.plan.sequences[0].samples);
  EXPECT_EQ(order.plan.sequences[1].num_drafts, 4);
  EXPECT_EQ(order.plan.sequences[1].num_new_blocks, 2);
}

TEST(RankMessages, ASlotIsReadAsItWasWritten) {
  const std::vector<float> logits = {1.5f, -2.0f};
  const SlotInit init = SomeInit(logits);
  RankMessage message;
  WriteAddSequence(6, init, message);
  RankOrder order;
  ASSERT_TRUE(ReadMessage(message, order).ok());
  EXPECT_EQ(order.call, RankCall::kAddSequence);
  EXPECT_EQ(order.slot, 6);
  EXPECT_EQ(order.init.prompt_tokens, init.prompt_tokens);
  EXPECT_EQ(order.init.max_length, init.max_length);
  EXPECT_EQ(order.init.computed, init.computed);
  EXPECT_EQ(order.init.layouts, init.layouts);
  EXPECT_EQ(order.init.sampling.temperature, init.sampling.temperature);
  EXPECT_EQ(order.init.sampling.seed, init.sampling.seed);
  EXPECT_EQ(order.init.tokens, init.tokens);
  EXPECT_TRUE(order.init.constrained);
  EXPECT_EQ(order.init.lists, init.lists);
  EXPECT_EQ(order.init.num_end_ids, init.num_end_ids);
  EXPECT_EQ(order.init.sent_drafts, init.sent_drafts);
  EXPECT_EQ(order.init.sent_threshold, init.sent_threshold);
  EXPECT_EQ(order.sent_logits, logits);
}

TEST(RankMessages, WhatIsCutOrTooLongOrUnknownIsDataLoss) {
  const std::vector<float> logits = {1.5f, -2.0f};
  RankMessage step, slot, land;
  WriteStep(SomePlan(), step);
  WriteAddSequence(6, SomeInit(logits), slot);
  WriteCall(RankCall::kLand, land);
  RankOrder order;
  for (RankMessage message : {step, slot, land}) {
    EXPECT_TRUE(ReadMessage(message, order).ok());
    for (size_t length = 0; length < message.size(); ++length) {
      EXPECT_EQ(ReadMessage(std::span(message).first(length), order).code(), Code::kDataLoss);
    }
    message.push_back({});
    EXPECT_EQ(ReadMessage(message, order).code(), Code::kDataLoss);
    message.front() = std::byte{200};
    EXPECT_EQ(ReadMessage(message, order).code(), Code::kDataLoss);
  }
  // A list that claims more than there is.
  std::fill(step.begin() + 9, step.begin() + 17, std::byte{0xff});
  EXPECT_EQ(ReadMessage(step, order).code(), Code::kDataLoss);
}

}  // namespace
}  // namespace tandem
