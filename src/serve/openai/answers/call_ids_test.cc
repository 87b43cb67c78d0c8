#include "serve/openai/answers/call_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>

namespace tandem::serve::openai {
namespace {

TEST(CallIdsTest, MistralsTemplatesGetNineLettersAndDigits) {
  CallIds ids(1);
  const AnswerFormat mistral = FindAnswerFormat("mistral", "none", "");
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = ids.Next(mistral.tools);
    EXPECT_EQ(id.size(), 9u);
    EXPECT_TRUE(std::ranges::all_of(id, [](unsigned char c) { return std::isalnum(c) != 0; }))
        << id;
    EXPECT_TRUE(seen.insert(id).second) << id;
  }
}

TEST(CallIdsTest, OthersAreLongAndDifferInEachServer) {
  CallIds one(1);
  CallIds same(1);
  CallIds other(2);
  const std::string id = one.Next(nullptr);
  EXPECT_TRUE(id.starts_with("call_")) << id;
  EXPECT_EQ(id.size(), 29u);
  EXPECT_EQ(same.Next(FindAnswerFormat("hermes", "none", "").tools), id);
  EXPECT_NE(one.Next(nullptr), id);
  EXPECT_NE(other.Next(nullptr), id);
  EXPECT_NE(CallIds().Next(nullptr), CallIds().Next(nullptr));
}

}  // namespace
}  // namespace tandem::serve::openai
