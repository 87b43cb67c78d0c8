#include "apps/cli/interrupt.h"

#include <gtest/gtest.h>

namespace tandem::apps {
namespace {

TEST(InterruptTest, ASignalAsksToStop) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Interrupt interrupt;
    EXPECT_TRUE(interrupt.Check().ok());
    ASSERT_EQ(std::raise(signal), 0);
    const Status status = interrupt.Check();
    EXPECT_EQ(status.code(), Code::kCancelled);
    EXPECT_EQ(status.message(), std::string("stopped by ") +
                                    (signal == SIGINT ? "SIGINT" : "SIGTERM") +
                                    "; the output folder is as it was");
  }
  EXPECT_TRUE(Interrupt().Check().ok());
}

TEST(InterruptDeathTest, ASecondSignalEndsTheProgram) {
  const auto twice = [] {
    const Interrupt interrupt;
    std::raise(SIGTERM);
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(twice(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(InterruptTest, HandlersAreThoseFromBeforeOnceItIsGone) {
  struct sigaction before{}, after{};
  ::sigaction(SIGINT, nullptr, &before);
  {
    const Interrupt interrupt;
  }
  ::sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

}  // namespace
}  // namespace tandem::apps
