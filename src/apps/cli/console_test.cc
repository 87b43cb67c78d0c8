#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/cli/command.h"

namespace tandem::apps {
namespace {

// The text that `write` prints on stdout.
template <typename Write>
std::string Stdout(Write write) {
  ::testing::internal::CaptureStdout();
  write();
  return ::testing::internal::GetCapturedStdout();
}

TEST(ConsoleTest, LinesAreForPeopleAndJsonForPrograms) {
  const Console people(/*json=*/false);
  const Console programs(/*json=*/true);
  const auto write = [](const Console& console) {
    console.Say("a line");
    console.SayPart("a part");
    console.Result(nlohmann::json{{"path", "x\xFF"}});
  };
  EXPECT_EQ(Stdout([&] { write(people); }), "a line\na part");
  EXPECT_EQ(Stdout([&] { write(programs); }), "{\"path\":\"x\xEF\xBF\xBD\"}\n");
  EXPECT_TRUE(people.status().ok());
}

// Three steps of some work, reported on stderr.
void ShowProgress() {
  const Console console(/*json=*/false);
  for (const double done : {0.1, 0.5, 1.0}) console.Progress("loading", done);
}

TEST(ConsoleTest, ShortWorkStaysOutOfPipesAndFiles) {
  ::testing::internal::CaptureStderr();
  ShowProgress();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// What a console prints in a pipe of work that takes `seconds`, reported each second.
std::string ProgressOf(int seconds, bool json = false, LogFormat format = LogFormat::kText) {
  FakeClock clock;
  const Console console(json, format, clock);
  ::testing::internal::CaptureStderr();
  for (int second = 0; second <= seconds; ++second) {
    console.Progress("calibrating", second / static_cast<double>(seconds));
    clock.Advance(std::chrono::seconds(1));
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(ConsoleTest, LongWorkIsToldInPipesAndFilesNowAndThen) {
  EXPECT_EQ(ProgressOf(9), "");
  // At most every ten seconds.
  EXPECT_EQ(ProgressOf(20), "tandem: calibrating  50 %\ntandem: calibrating 100 %\n");
  // Each tenth.
  const std::string tenths = ProgressOf(300);
  EXPECT_EQ(std::ranges::count(tenths, '\n'), 10) << tenths;
  EXPECT_TRUE(tenths.starts_with("tandem: calibrating  10 %\n")) << tenths;
  // At least every minute.
  const std::string minutes = ProgressOf(6000);
  EXPECT_EQ(std::ranges::count(minutes, '\n'), 100);
  EXPECT_TRUE(minutes.starts_with("tandem: calibrating   1 %\n")) << minutes.substr(0, 100);
  EXPECT_EQ(ProgressOf(300, /*json=*/true), "");
  EXPECT_EQ(ProgressOf(300, /*json=*/false, LogFormat::kJson), "");
}

// One work after the other: each begins anew.
TEST(ConsoleTest, TheNextWorkIsToldOnItsOwn) {
  FakeClock clock;
  const Console console(/*json=*/false, LogFormat::kText, clock);
  ::testing::internal::CaptureStderr();
  for (const char* what : {"calibrating", "writing"}) {
    for (const double done : {0.5, 0.7, 1.0}) {
      console.Progress(what, done);
      clock.Advance(std::chrono::seconds(20));
    }
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "tandem: calibrating  70 %\ntandem: calibrating 100 %\n"
            "tandem: writing  70 %\ntandem: writing 100 %\n");
}

TEST(ConsoleTest, ProgressIsRedrawnOnATerminal) {
  int screen = -1;
  int terminal = -1;
  ASSERT_EQ(::openpty(&screen, &terminal, nullptr, nullptr, nullptr), 0);
  std::fflush(stderr);
  const int kept = ::dup(STDERR_FILENO);
  ::dup2(terminal, STDERR_FILENO);
  ShowProgress();
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  // A terminal hands over what was written piece by piece.
  std::string shown;
  std::array<char, 256> piece{};
  while (!shown.ends_with('\n')) {
    const ssize_t size = ::read(screen, piece.data(), piece.size());
    ASSERT_GT(size, 0) << shown;
    shown.append(piece.data(), static_cast<size_t>(size));
  }
  ::close(terminal);
  ::close(screen);
  EXPECT_EQ(shown, "\rloading  10 %\rloading  50 %\rloading 100 %\r\n");
}

TEST(ConsoleTest, TheFirstFailedWriteIsKeptAndEndsTheWriting) {
  std::fflush(stdout);
  const int kept = ::dup(STDOUT_FILENO);
  std::FILE* const full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  ::dup2(::fileno(full), STDOUT_FILENO);
  const Console console(/*json=*/false);
  console.Say("a line");
  ::dup2(kept, STDOUT_FILENO);
  ::close(kept);
  std::fclose(full);
  EXPECT_EQ(console.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(console.status().message(), "stdout: cannot write: No space left on device");
  std::clearerr(stdout);
  EXPECT_EQ(Stdout([&] { console.Say("another"); }), "");
}

TEST(ConsoleTest, AReaderThatWentAwayIsAnErrorOfItsOwn) {
  std::fflush(stdout);
  const int kept = ::dup(STDOUT_FILENO);
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  ::close(ends[0]);
  ::dup2(ends[1], STDOUT_FILENO);
  ::close(ends[1]);
  const Console console(/*json=*/false);
  console.Say("a line");
  ::dup2(kept, STDOUT_FILENO);
  ::close(kept);
  std::signal(SIGPIPE, handler);
  EXPECT_EQ(console.status().code(), Code::kCancelled);
  EXPECT_EQ(console.status().field(), "stdout");
  std::clearerr(stdout);
}

}  // namespace
}  // namespace tandem::apps
