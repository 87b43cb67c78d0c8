#include "serve/openai/request/ignored_fields.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tandem::serve::openai {
namespace {

TEST(IgnoredFieldsTest, NamesBecomeAHeadersValue) {
  IgnoredFields ignored;
  EXPECT_EQ(ignored.Tell({"tempperature", "x"}, "id"), "tempperature, x");
  EXPECT_EQ(ignored.Tell({"a\r\nSet-Cookie: b", "c,d", "h\xC3\xA9"}, "id"),
            "a??Set-Cookie:?b, c?d, h??");
  EXPECT_EQ(ignored.Tell({std::string(1000, 'a')}, "id"), std::string(64, 'a'));
}

TEST(IgnoredFieldsTest, LogsANameOnceAndABoundedNumberOfNames) {
  IgnoredFields ignored;
  for (int i = 0; i < 3; ++i) ignored.Tell({"a", "b"}, "id");
  EXPECT_EQ(ignored.num_logged(), 2u);
  for (int i = 0; i < 1000; ++i) ignored.Tell({fmt::format("field{}", i)}, "id");
  EXPECT_EQ(ignored.num_logged(), 256u);
}

}  // namespace
}  // namespace tandem::serve::openai
