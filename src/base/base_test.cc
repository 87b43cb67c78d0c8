#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/free_memory.h"
#include "base/reason.h"
#include "base/status.h"
#include "base/thread_pool.h"

namespace tandem {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  TANDEM_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

TEST(StatusTest, TellsFieldAndReasonApartFromTheSentence) {
  const Status refused =
      FieldError("max_tokens", "is too large").WithReason(Reason::kContextLength);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.message(), "max_tokens: is too large");
  EXPECT_EQ(refused.field(), "max_tokens");
  EXPECT_EQ(refused.reason(), Reason::kContextLength);
  const Status annotated = refused.Annotate("prompt 2");
  EXPECT_EQ(annotated.message(), "prompt 2: max_tokens: is too large");
  EXPECT_EQ(annotated.field(), "max_tokens");
  EXPECT_EQ(annotated.reason(), Reason::kContextLength);
  // What is not set reads as none, and an ok status has nothing to tell.
  EXPECT_EQ(NotFound("seed: x").field(), "");
  EXPECT_EQ(NotFound("x").reason(), Reason::kNone);
  EXPECT_TRUE(Status().WithField("n").WithReason(Reason::kQueueFull).ok());
  EXPECT_EQ(Status().field(), "");
}

TEST(StatusTest, CarriesTheFirstErrorThroughResults) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Quarter(6).status().Annotate("field").ToString(), "INVALID_ARGUMENT: field: odd");
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "OK");
}

TEST(BoundedQueueTest, RefusesAtItsBoundAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(4));
  EXPECT_EQ(queue.Pop(std::chrono::seconds(0)), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.Pop(std::chrono::hours(1)), std::nullopt);
}

TEST(FakeClockTest, MovesOnlyWhenTold) {
  FakeClock clock;
  EXPECT_EQ(clock.Now(), Nanos(0));
  clock.Advance(std::chrono::milliseconds(5));
  EXPECT_EQ(clock.Now(), std::chrono::milliseconds(5));
}

TEST(ThreadPoolTest, CoversEveryIndexOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads, /*pin=*/false);
    for (const int64_t count : {0, 1, 5, 64, 1000}) {
      for (const int64_t grain : {1, 7, 64}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
      }
    }
  }
}

TEST(ThreadPoolTest, RunsManyShortTasksAndWakesSleepers) {
  ThreadPool pool(3, /*pin=*/false);
  std::atomic<int> calls{0};
  for (int i = 0; i < 2000; ++i) {
    pool.Run([&](int) { ++calls; });
    if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(calls.load(), 6000);
}

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("tandem_file_test." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(FileTest, WritesWholeFilesOrNone) {
  const auto path = folder_ / "out";
  {
    auto writer = AtomicFileWriter::Create(path);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append("half").ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  ASSERT_TRUE(WriteFileAtomically(path, "whole").ok());
  EXPECT_EQ(*ReadTextFile(path), "whole");
  EXPECT_EQ(ReadTextFile(path, 4).status().code(), Code::kInvalidArgument);
}

TEST_F(FileTest, NamesTheFileThatIsMissing) {
  const auto result = MappedFile::Open(folder_ / "absent");
  EXPECT_EQ(result.status().code(), Code::kNotFound);
  EXPECT_NE(result.status().message().find("absent"), std::string::npos);
}

TEST(FreeMemoryTest, TheMachineHasMemory) { EXPECT_GT(FreeHostBytes(), 1 << 20); }

}  // namespace
}  // namespace tandem
