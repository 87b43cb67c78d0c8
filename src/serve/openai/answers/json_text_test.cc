#include "serve/openai/answers/json_text.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::serve::openai {
namespace {

TEST(JsonTextTest, TheEndIsFoundHoweverTheTextComes) {
  const std::string text = R"(xx{"a": ["}\\", {}, "\"]"]} and [more])";
  const size_t end = text.find(" and");
  for (size_t cut = 3; cut < end; ++cut) {
    JsonEnd reader;
    EXPECT_EQ(reader.Find(text.substr(0, cut), 2), text.npos);
    EXPECT_EQ(reader.Find(text, 2), end);
  }
}

TEST(JsonTextTest, ValuesAreShownAsTheyAreWritten) {
  const std::string_view array = R"([ 1e2 ,{"b": [2]}, "a,]\"" ,null,[[]]])";
  EXPECT_EQ(JsonItems(array),
            (std::vector<std::string_view>{"1e2", R"({"b": [2]})", R"("a,]\"")", "null", "[[]]"}));
  EXPECT_TRUE(JsonItems("[ ]").empty());
  const std::string_view object = R"({"x": "y", "\u0079" :1.50, "z":{ "x": 0 }, "w":[1,2] })";
  EXPECT_EQ(JsonMemberText(object, "x"), R"("y")");
  EXPECT_EQ(JsonMemberText(object, "y"), "1.50");
  EXPECT_EQ(JsonMemberText(object, "z"), R"({ "x": 0 })");
  EXPECT_EQ(JsonMemberText(object, "w"), "[1,2]");
  EXPECT_EQ(JsonMemberText(object, "v"), "");
  EXPECT_EQ(JsonMemberText("{ }", "v"), "");
}

}  // namespace
}  // namespace tandem::serve::openai
