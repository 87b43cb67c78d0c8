#include "serve/free_word.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace tandem::serve {
namespace {

FreeWord FreeOf(std::initializer_list<std::string_view> texts) {
  FreeWord free;
  for (const std::string_view text : texts) free.Avoid(text);
  return free;
}

TEST(FreeWordTest, TheWordOccursInNoText) {
  EXPECT_EQ(FreeOf({}).Word(), "continued");
  EXPECT_EQ(FreeOf({"Once", "continue", "continue d"}).Word(), "continued");
  EXPECT_EQ(FreeOf({"to be continued"}).Word(), "continued0000000000");
  EXPECT_EQ(FreeOf({"continued", "continued0"}).Word(), "continued0000000000");
  EXPECT_EQ(FreeOf({"continued00000000001 continued9999999999"}).Word(), "continued0000000001");
  EXPECT_EQ(FreeOf({"continuedcontinued0000000001", "continued0000000000continued"}).Word(),
            "continued0000000002");
}

// `count` words: the first numbers, with and without zeros before them.
std::string HostileWords(size_t count) {
  std::string text;
  for (size_t i = 0; i < count / 2; ++i) {
    text += fmt::format("continued{} continued{:010} ", i, i);
  }
  return text;
}

TEST(FreeWordTest, EachPlaceIsLookedAtOnceWhateverIsWritten) {
  for (const size_t count : {10'000, 20'000, 400'000}) {
    const std::string text = HostileWords(count);
    const FreeWord free = FreeOf({text});
    EXPECT_EQ(free.num_places(), count);
    EXPECT_EQ(free.Word(), fmt::format("continued{:010}", count / 2));
    EXPECT_EQ(text.find(free.Word()), text.npos);
  }
}

}  // namespace
}  // namespace tandem::serve
