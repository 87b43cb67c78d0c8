#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/free_memory.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/reason.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "base/utf8.h"

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

TEST(StatusTest, CarriesFieldAndReasonSeparatelyFromTheMessage) {
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
  // An unset field or reason reads as empty, and an ok status has neither.
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
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.TryPop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
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

int CoresOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return CPU_COUNT(&set);
}

TEST(ThreadPoolTest, ItsCallerCanHaveACoreAndThreadsOfThatAllCores) {
  std::thread([] {
    ThreadPool(AvailableCores(), /*pin=*/false).BindCaller();
    EXPECT_EQ(CoresOfThisThread(), AvailableCores());
    ThreadPool(AvailableCores(), /*pin=*/true).BindCaller();
    EXPECT_EQ(CoresOfThisThread(), 1);
    std::thread([] {
      EXPECT_EQ(CoresOfThisThread(), 1);
      BindToAllCores();
      EXPECT_EQ(CoresOfThisThread(), AvailableCores());
    }).join();
  }).join();
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

TEST_F(FileTest, OverwritesWhatWasAppended) {
  const auto path = folder_ / "out";
  const auto writer = AtomicFileWriter::Create(path).value();
  ASSERT_TRUE(writer->Append("head: ?? body").ok());
  ASSERT_TRUE(writer->Overwrite(6, "42").ok());
  ASSERT_TRUE(writer->Append(", end").ok());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(*ReadTextFile(path), "head: 42 body, end");
}

TEST_F(FileTest, ALockHasOneOwnerAtATimeAndLeavesNoFile) {
  const auto path = folder_ / "lock";
  auto first = FileLock::Take(path).value();
  const Status refused = FileLock::Take(path).status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find(path.string()), std::string::npos);
  first.reset();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_TRUE(FileLock::Take(path).ok());
  EXPECT_EQ(FileLock::Take(folder_ / "absent" / "lock").status().code(), Code::kFailedPrecondition);
}

TEST(ChecksumTest, IsXxh3InHexDigits) {
  EXPECT_EQ(Checksum({}), "99aa06d3014798d86001c324468d497f");  // the hash's own test vector
  const std::string text = "tandem";
  std::string other = text;
  other.back() ^= 1;
  const auto of = [](const std::string& s) { return Checksum(std::as_bytes(std::span(s))); };
  EXPECT_EQ(of(text), of("tandem"));
  EXPECT_NE(of(text), of(other));
  EXPECT_EQ(of(text).size(), kChecksumDigits);
}

TEST_F(FileTest, NamesTheFileThatIsMissing) {
  const auto result = MappedFile::Open(folder_ / "absent");
  EXPECT_EQ(result.status().code(), Code::kNotFound);
  EXPECT_NE(result.status().message().find("absent"), std::string::npos);
}

TEST_F(FileTest, KeepsTheFinishedPartOfAFileWhenToldTo) {
  const auto path = folder_ / "answers";
  const auto partial = folder_ / "answers.partial";
  {
    auto writer = AtomicFileWriter::Create(path, AtomicFileWriter::Unfinished::kKeep);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append("1,2\n").ok());
    EXPECT_EQ(*ReadTextFile(partial), "1,2\n");  // at once: a crash would leave it
  }
  EXPECT_FALSE(NameExists(path));
  EXPECT_EQ(*ReadTextFile(partial), "1,2\n");
  auto writer = AtomicFileWriter::Create(path, AtomicFileWriter::Unfinished::kKeep);
  ASSERT_TRUE((*writer)->Append("3\n").ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  EXPECT_EQ(*ReadTextFile(path), "3\n");
  EXPECT_FALSE(NameExists(partial));
}

TEST_F(FileTest, ReplacesRegularFilesAlone) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(AtomicFileWriter::Create(folder_ / "pipe").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(AtomicFileWriter::Create("/dev/null").status().code(), Code::kInvalidArgument);
}

TEST_F(FileTest, RefusesAPipeWithoutWaitingForItsWriter) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  const Status status = ReadTextFile(folder_ / "pipe").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("not a regular file"), std::string::npos);
}

TEST_F(FileTest, ALinkToItselfIsAnErrorThatNamesIt) {
  const auto path = folder_ / "loop";
  std::filesystem::create_symlink("loop", path);
  EXPECT_TRUE(NameExists(path));
  EXPECT_FALSE(NameExists(folder_ / "absent"));
  const Status status = MappedFile::Open(path).status();
  EXPECT_NE(status.message().find("loop"), std::string::npos);
  EXPECT_NE(status.message().find("symbolic links"), std::string::npos);
}

TEST_F(FileTest, ReadsTheLinesOfAnySystem) {
  const auto path = folder_ / "lines";
  ASSERT_TRUE(WriteFileAtomically(path, "\xEF\xBB\xBFone\r\n\r\ntwo\nthree").ok());
  EXPECT_EQ(*ReadLines(path), (std::vector<std::string>{"one", "", "two", "three"}));
  ASSERT_TRUE(WriteFileAtomically(path, "").ok());
  EXPECT_TRUE(ReadLines(path)->empty());
}

TEST(Utf8Test, MeasuresWellFormedSequencesAlone) {
  EXPECT_EQ(Utf8SequenceLength("a"), 1u);
  EXPECT_EQ(Utf8SequenceLength("\u00e9x"), 2u);
  EXPECT_EQ(Utf8SequenceLength("\u65e5"), 3u);
  EXPECT_EQ(Utf8SequenceLength("\U0001f600"), 4u);
  // Empty, a tail, a cut, overlong forms, a surrogate, beyond the last code point.
  for (const char* bytes : {"", "\x80", "\xc3", "\xe6\x97", "\xc0\x80", "\xe0\x80\x80",
                            "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_EQ(Utf8SequenceLength(bytes), 0u) << bytes;
  }
}

TEST(PrintableTest, EscapesTerminalControlCharacters) {
  EXPECT_EQ(Printable("plain text, caf\u00e9"), "plain text, caf\u00e9");
  EXPECT_EQ(Printable("a\x1b[2Jb\r\n"), "a\\u001b[2Jb\\u000d\\n");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\u009b");  // CSI as one character
  EXPECT_EQ(Printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\u0000");
}

// Sanitizers need large parts of the address space.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// Limits hold for the process, so a child takes them.
TEST(LimitsDeathTest, ARefusedThreadLeavesNoneRunning) {
  const auto start_too_many = [] {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_AS, &none);  // no room for a stack
    try {
      const ThreadPool pool(8, /*pin=*/false);
    } catch (const std::system_error&) {
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(start_too_many(), ::testing::ExitedWithCode(7), "");
}

TEST(LimitsDeathTest, FreeMemoryKnowsTheLimitOfTheAddressSpace) {
  const auto limit = [] {
    const rlimit little{.rlim_cur = 1, .rlim_max = 1};
    ::setrlimit(RLIMIT_AS, &little);
    std::_Exit(FreeHostBytes() == 0 ? 7 : 0);
  };
  EXPECT_EXIT(limit(), ::testing::ExitedWithCode(7), "");
}

#endif

TEST(CheckDeathTest, NamesTheConditionAndTheSentence) {
  EXPECT_DEATH(TANDEM_CHECK(1 > 2, "numbers are broken"),
               "base_test.cc.*check failed: 1 > 2: numbers are broken");
}

TEST(LogDeathTest, ALineIsOneLineInBothFormats) {
  const auto write = [](LogFormat format) {
    ConfigureLog(LogLevel::kInfo, format);
    LogDebug("not shown");
    LogWarning("a \"b\"\n\x1b[2J");
    std::_Exit(7);
  };
  EXPECT_EXIT(write(LogFormat::kText), ::testing::ExitedWithCode(7),
              ::testing::EndsWith("warning a \"b\"\\n\\u001b[2J\n"));
  EXPECT_EXIT(write(LogFormat::kJson), ::testing::ExitedWithCode(7),
              ::testing::HasSubstr(R"("level":"warning","message":"a \"b\"\\n\\u001b[2J"})"));
}

TEST(FreeMemoryTest, TheMachineHasMemory) { EXPECT_GT(FreeHostBytes(), 1 << 20); }

}  // namespace
}  // namespace tandem
