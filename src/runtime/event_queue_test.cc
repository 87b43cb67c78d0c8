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
  ASSERT_TRUE(queue.Open(9, 2, boxes).ok());
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

TEST(EventQueue, MovesLogitsAndCoalescesThemWithTheirTokens) {
  EventQueue queue(2, 1000);
  std::vector<int32_t> boxes;
  ASSERT_TRUE(queue.Open(9, 1, boxes, {.first = 1000}).ok());
  const Usage usage;
  const Status no_error;
  std::vector<const float*> places;
  const auto push = [&](std::vector<LogitsRow> context, std::vector<LogitsRow> drawn) {
    for (const LogitsRow& row : context) places.push_back(row.data());
    for (const LogitsRow& row : drawn) places.push_back(row.data());
    const std::vector<SampledToken> tokens = Tokens({1});
    const Posting posting = {.mailbox = boxes[0],
                             .tokens = tokens,
                             .context_logits = &context,
                             .drawn_logits = &drawn,
                             .usage = &usage,
                             .error = &no_error};
    queue.Push(std::span(&posting, 1));
    EXPECT_TRUE(context.empty() && drawn.empty());
  };
  push({{1.0f, 2.0f}, {3.0f, 4.0f}}, {{5.0f, 6.0f}});
  push({}, {{7.0f, 8.0f}});
  Event event;
  event.generation_logits.resize(3);
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_EQ(event.context_logits, (std::vector<LogitsRow>{{1.0f, 2.0f}, {3.0f, 4.0f}}));
  EXPECT_EQ(event.generation_logits, (std::vector<LogitsRow>{{5.0f, 6.0f}, {7.0f, 8.0f}}));
  EXPECT_EQ(event.context_logits[1].data(), places[1]) << "moved, not copied";
  EXPECT_EQ(event.generation_logits[1].data(), places[3]);
  push({}, {});
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_TRUE(event.context_logits.empty() && event.generation_logits.empty());
}

TEST(EventQueue, TheLogitsOfOpenRequestsAreBounded) {
  EventQueue queue(10, 1000);
  std::vector<int32_t> boxes, others, refused;
  ASSERT_TRUE(queue.Open(1, 3, boxes, {.first = 500, .other = 100}).ok());
  ASSERT_TRUE(queue.Open(2, 1, others, {.first = 300}).ok());
  const Status full = queue.Open(3, 1, refused, {.first = 1});
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_TRUE(refused.empty());
  ASSERT_TRUE(queue.Open(4, 1, refused).ok()) << "it wants none";
  queue.Abandon(others);
  others.clear();
  ASSERT_TRUE(queue.Open(5, 1, others, {.first = 300}).ok());
  queue.Push(boxes[0], {}, {}, FinishReason::kLength);
  EXPECT_FALSE(queue.Open(6, 1, others, {.first = 500}).ok()) << "its last event is not read yet";
  Event event;
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_TRUE(queue.Open(6, 1, others, {.first = 500}).ok());
}

TEST(EventQueue, TellsAllOfAStepAtOnce) {
  EventQueue queue(3);
  std::vector<int32_t> boxes;
  ASSERT_TRUE(queue.Open(5, 3, boxes).ok());
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
  ASSERT_TRUE(queue.Open(1, 2, boxes).ok());
  EXPECT_FALSE(queue.Open(2, 1, others).ok());
  queue.Push(boxes[0], {}, {}, FinishReason::kCancelled);
  EXPECT_FALSE(queue.Open(2, 1, others).ok());
  Event event;
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_TRUE(queue.Open(2, 1, others).ok());
  queue.Push(others[0], Tokens({5}), {});
  ASSERT_TRUE(queue.Pop(event, Nanos(0)));
  EXPECT_EQ(event.request, 2u);
  EXPECT_EQ(event.finish, FinishReason::kNone);
}

TEST(EventQueue, HasRoomForTheChoicesAndLogitsOfAllThatShareIt) {
  EventQueue queue(0);
  std::vector<int32_t> boxes;
  EXPECT_FALSE(queue.Open(1, 1, boxes).ok());
  queue.AddRoom(2, 100);
  queue.AddRoom(1, 50);
  ASSERT_TRUE(queue.Open(1, 2, boxes, {.first = 80, .other = 60}).ok());
  ASSERT_TRUE(queue.Open(2, 1, boxes, {.first = 10}).ok());
  EXPECT_FALSE(queue.Open(3, 1, boxes).ok());
  for (const int32_t box : boxes) queue.Push(box, Tokens({box}), {}, FinishReason::kEnd);
  Event event;
  for (const int32_t box : boxes) {
    ASSERT_TRUE(queue.Pop(event, Nanos(0)));
    EXPECT_EQ(event.tokens.front().token, box);
  }
  EXPECT_EQ(event.request, 2u);
}

TEST(EventQueue, EveryTokenArrivesOnceAcrossThreads) {
  constexpr int kTokens = 20000;
  EventQueue queue(3);
  std::vector<int32_t> boxes;
  ASSERT_TRUE(queue.Open(1, 3, boxes).ok());
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
