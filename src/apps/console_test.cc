#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/command.h"

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

TEST(ConsoleTest, ProgressStaysOutOfPipesAndFiles) {
  ::testing::internal::CaptureStderr();
  ShowProgress();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
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

}  // namespace
}  // namespace tandem::apps
