#include "base/turns.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem {
namespace {

TEST(TurnsTest, OneThreadAtATimeHasATurn) {
  Turns turns;
  int inside = 0;  // not atomic: the thread sanitizer would see two threads here
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        const Turn turn(&turns);
        ++inside;
        turn.Yield();
        ++inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(inside, 8000);
}

TEST(TurnsTest, AThreadThatAsksAgainComesAfterThoseThatWait) {
  Turns turns;
  std::vector<int> order;
  turns.Take();
  std::thread other([&] {
    const Turn turn(&turns);
    order.push_back(1);
  });
  while (turns.waiting() == 0) std::this_thread::yield();
  turns.GiveBack();
  turns.Take();
  EXPECT_EQ(turns.waiting(), 0u);
  order.push_back(2);
  turns.GiveBack();
  other.join();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(TurnsTest, WithoutTurnsNothingIsWaitedFor) {
  const Turn turn(nullptr);
  turn.Yield();
}

}  // namespace
}  // namespace tandem
