#include "apps/cli/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/file.h"

namespace tandem::apps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(OutputFileTest, TakesBothStreamsWhileItLivesAndAppends) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) /
                                     ("output_file_test." + std::to_string(::getpid()));
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  std::fputs("before ", stdout);
  for (const char* text : {"one ", "two "}) {
    const auto file = OutputFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    std::fputs(text, stdout);
    std::fflush(stdout);
    std::fputs("error ", stderr);
  }
  std::fputs("after", stdout);
  std::fputs("end", stderr);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "before after");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "end");
  EXPECT_EQ(*ReadTextFile(path), "one error two error ");
  std::filesystem::remove(path);
}

TEST(OutputFileTest, SaysWhyAFileCannotBeOpened) {
  const auto file = OutputFile::Open("/nowhere/at/all.log");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.status().message(),
              AllOf(HasSubstr("/nowhere/at/all.log"), HasSubstr("No such file or directory")));
}

}  // namespace
}  // namespace tandem::apps
