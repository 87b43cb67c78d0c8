#include "serve/grpc/poll_executor.h"

#include <gtest/gtest.h>

#include <semaphore>

namespace tandem::serve {
namespace {

// Says when it was polled, and waits there for permission.
class Counted final : public Polled {
 public:
  void Poll() override {
    ++polls;
    begun.release();
    go_on.acquire();
  }
  std::atomic<int> polls{0};
  std::counting_semaphore<> begun{0};
  std::counting_semaphore<> go_on{0};
};

TEST(PollExecutor, NewsDuringAPollCausesOneMore) {
  PollExecutor executor(1);
  const auto polled = std::make_shared<Counted>();
  executor.Schedule(polled);
  polled->begun.acquire();
  for (int i = 0; i < 5; ++i) executor.Schedule(polled);
  polled->go_on.release(2);
  polled->begun.acquire();
  executor.Stop();
  EXPECT_EQ(polled->polls, 2) << "it waits at most once";
}

TEST(PollExecutor, AfterStopNothingIsPolledOrKept) {
  PollExecutor executor(2);
  executor.Stop();
  const auto polled = std::make_shared<Counted>();
  executor.Schedule(polled);
  EXPECT_EQ(polled.use_count(), 1);
  EXPECT_EQ(polled->polls, 0);
}

}  // namespace
}  // namespace tandem::serve
