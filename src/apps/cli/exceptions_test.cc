#include "apps/cli/exceptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

namespace tandem::apps {
namespace {

using ::testing::HasSubstr;

template <typename Error>
Status Of(const Error& error) {
  return StatusOfException(std::make_exception_ptr(error));
}

TEST(StatusOfExceptionTest, RefusalsOfTheSystemAreNotInternal) {
  EXPECT_EQ(Of(std::bad_alloc()).code(), Code::kResourceExhausted);
  const Status thread = Of(std::system_error(EAGAIN, std::generic_category()));
  EXPECT_EQ(thread.code(), Code::kResourceExhausted);
  EXPECT_THAT(thread.message(), HasSubstr("ulimit -u"));
  const Status file = Of(std::filesystem::filesystem_error(
      "status", "/models/loop", std::error_code(ELOOP, std::generic_category())));
  EXPECT_EQ(file.code(), Code::kFailedPrecondition);
  EXPECT_THAT(file.message(), HasSubstr("/models/loop: Too many levels of symbolic links"));
}

TEST(StatusOfExceptionTest, OtherExceptionsAreInternal) {
  EXPECT_EQ(Of(std::logic_error("broken")).code(), Code::kInternal);
  EXPECT_EQ(Of(7).code(), Code::kInternal);
}

}  // namespace
}  // namespace tandem::apps
