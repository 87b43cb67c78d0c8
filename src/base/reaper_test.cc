#include "base/reaper.h"

#include <gtest/gtest.h>

#include <memory>
#include <semaphore>
#include <thread>

namespace tandem {
namespace {

// Its end waits for permission.
struct Slow {
  ~Slow() {
    may_end.acquire();
    ended_on = std::this_thread::get_id();
    ++ended;
  }
  std::binary_semaphore& may_end;
  std::thread::id& ended_on;
  int& ended;
};

TEST(ReaperTest, WhoeverGivesAnObjectUpDoesNotWaitForItsEnd) {
  std::binary_semaphore may_end{0};
  std::thread::id ended_on;
  int ended = 0;
  Reaper reaper;
  std::shared_ptr<Slow> object = reaper.Own(std::make_shared<Slow>(may_end, ended_on, ended));
  std::shared_ptr<Slow> second = object;
  object.reset();
  reaper.Await();  // for nothing: it has another owner
  EXPECT_EQ(ended, 0);
  second.reset();
  may_end.release();
  reaper.Await();
  EXPECT_EQ(ended, 1);
  EXPECT_NE(ended_on, std::this_thread::get_id());
}

TEST(ReaperTest, EndsWhatWasGivenUpBeforeItEndsItself) {
  std::binary_semaphore may_end{1};
  std::thread::id ended_on;
  int ended = 0;
  {
    Reaper reaper;
    reaper.Own(std::make_shared<Slow>(may_end, ended_on, ended)).reset();
  }
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace tandem
