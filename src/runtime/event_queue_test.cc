#include "runtime/event_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace tandem {
namespace {

std::vector<SampledToken> Tokens(std::initializer_list<int32_t> ids) {
  std::vector<SampledToken> tokens;
  for (const int32_t id : ids) tokens.emplace_back().token = id;
  return tokens;
}

TEST(EventQueue, CoalescesTokensOfASlowReaderAndKeepsTheOrderOfChoices) {
  EventQueue queue(4);
  std::vector<int32_t> boxes;
  ASSERT_TRUE(queue.Open(9, 2, boxes));
  queue.Push(boxes[1], Tokens({1}), {});
  queue.Push(boxes[0], Tokens({2}), {});
  Usage usage;
  usage.output_tokens = 3;
  queue.Push(boxes[1], Tokens({3, 4}), usage, FinishReason::kLength);
  Event event;
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_EQ(event.request, 9u);
  EXPECT_EQ(event.choice, 1);
  ASSERT_EQ(event.tokens.size(), 3u);
  EXPECT_EQ(event.tokens[2].token, 4);
  EXPECT_EQ(event.finish, FinishReason::kLength);
  EXPECT_EQ(event.usage.output_tokens, 3);
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_EQ(event.choice, 0);
  ASSERT_EQ(event.tokens.size(), 1u);
  EXPECT_EQ(event.finish, FinishReason::kNone);
  EXPECT_FALSE(queue.Pop(event, Nanos(0)));
}

TEST(EventQueue, TellsAllOfAStepAtOnce) {
  EventQueue queue(3);
  std::vector<int32_t> boxes;
  ASSERT_TRUE(queue.Open(5, 3, boxes));
  const Usage usage;
  const Status fine;
  const auto one = Tokens({7});
  const auto two = Tokens({8, 9});
  const std::vector<Posting> step = {
      {.mailbox = boxes[2], .tokens = one, .usage = &usage, .error = &fine},
      {.mailbox = boxes[0], .tokens = two, .usage = &usage, .error = &fine}};
  queue.Push(step);
  queue.Push(step);
  Event event;
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_EQ(event.choice, 2);
  EXPECT_EQ(event.tokens.size(), 2u);
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_EQ(event.choice, 0);
  EXPECT_EQ(event.tokens.size(), 4u);
  EXPECT_FALSE(queue.Pop(event, Nanos(0)));
}

TEST(EventQueue, GivesAMailboxBackWhenItsLastEventWasRead) {
  EventQueue queue(2);
  std::vector<int32_t> boxes, others;
  ASSERT_TRUE(queue.Open(1, 2, boxes));
  EXPECT_FALSE(queue.Open(2, 1, others));
  queue.Push(boxes[0], {}, {}, FinishReason::kCancelled);
  EXPECT_FALSE(queue.Open(2, 1, others));
  Event event;
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_TRUE(queue.Open(2, 1, others));
  queue.Push(others[0], Tokens({5}), {});
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_EQ(event.request, 2u);
  EXPECT_EQ(event.finish, FinishReason::kNone);
}

TEST(EventQueue, EveryTokenArrivesOnceAcrossThreads) {
  constexpr int kTokens = 20000;
  EventQueue queue(3);
  std::vector<int32_t> boxes;
  ASSERT_TRUE(queue.Open(1, 3, boxes));
  std::thread writer([&] {
    for (int i = 0; i < kTokens; ++i) {
      for (const int32_t box : boxes) {
        queue.Push(box, Tokens({i}), {},
                   i + 1 == kTokens ? FinishReason::kLength : FinishReason::kNone);
      }
    }
  });
  std::vector<int32_t> next(3, 0);
  int ended = 0;
  Event event;
  while (ended < 3) {
    ASSERT_TRUE(queue.Pop(event, std::chrono::seconds(20)));
    for (const SampledToken& token : event.tokens) {
      ASSERT_EQ(token.token, next[static_cast<size_t>(event.choice)]++);
    }
    ended += event.finish != FinishReason::kNone;
  }
  writer.join();
  EXPECT_EQ(next, std::vector<int32_t>(3, kTokens));
}

}  // namespace
}  // namespace tandem
