// Files as java.util.Properties reads them: each expectation is what Java gives.
#include "apps/lmi/properties_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tandem::apps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs Read(std::string_view text) {
  const auto properties = ParseProperties(text);
  EXPECT_TRUE(properties.ok()) << properties.status().message();
  Pairs pairs;
  for (const Property& property : properties.value())
    pairs.emplace_back(property.key, property.value);
  return pairs;
}

TEST(PropertiesFile, SeparatesAtEqualsColonOrBlank) {
  EXPECT_THAT(Read("a=1\nb:2\nc 3\nd\t4\ne = 5\nf : 6\ng  =  7\n"),
              ElementsAre(Pair("a", "1"), Pair("b", "2"), Pair("c", "3"), Pair("d", "4"),
                          Pair("e", "5"), Pair("f", "6"), Pair("g", "7")));
}

TEST(PropertiesFile, OnlyTheFirstSeparatorIsNotPartOfTheValue) {
  EXPECT_THAT(Read("a==1\nb=:2\nc : = 3\nd=x=y\nurl=s3://bucket/key"),
              ElementsAre(Pair("a", "=1"), Pair("b", ":2"), Pair("c", "= 3"), Pair("d", "x=y"),
                          Pair("url", "s3://bucket/key")));
}

TEST(PropertiesFile, KeysWithoutAValueAreEmpty) {
  EXPECT_THAT(Read("a\nb=\nc :"), ElementsAre(Pair("a", ""), Pair("b", ""), Pair("c", "")));
}

TEST(PropertiesFile, SkipsBlankLinesAndComments) {
  EXPECT_THAT(Read("# one\n\n  ! two\n \t\f\n\ta=1\n#b=2\\\nc=3\n"),
              ElementsAre(Pair("a", "1"), Pair("c", "3")))
      << "a comment is never continued";
  EXPECT_THAT(Read(""), IsEmpty());
  EXPECT_THAT(Read("# only"), IsEmpty());
}

TEST(PropertiesFile, ANumberSignAfterTheValueIsPartOfIt) {
  EXPECT_THAT(Read("option.max_rolling_batch_size=16 # default is 32\n"),
              ElementsAre(Pair("option.max_rolling_batch_size", "16 # default is 32")));
}

TEST(PropertiesFile, BlanksAtTheEndArePartOfTheValue) {
  EXPECT_THAT(Read("a=1  \nb=\t 2\t"), ElementsAre(Pair("a", "1  "), Pair("b", "2\t")));
}

TEST(PropertiesFile, JoinsLinesThatEndInABackslash) {
  EXPECT_THAT(Read("a=1,\\\n   2,\\\r\n\t3\nb=4"), ElementsAre(Pair("a", "1,2,3"), Pair("b", "4")));
  EXPECT_THAT(Read("a=1\\\n# two\n"), ElementsAre(Pair("a", "1# two")));
  EXPECT_THAT(Read("a=1\\\\\nb=2"), ElementsAre(Pair("a", "1\\"), Pair("b", "2")))
      << "two backslashes are one character, and end no line";
  EXPECT_THAT(Read("a=1\\\n\nb=2"), ElementsAre(Pair("a", "1"), Pair("b", "2")));
  EXPECT_THAT(Read("a=1\\"), ElementsAre(Pair("a", "1"))) << "at the end of the file";
  EXPECT_THAT(Read("\\\n\\\na=1"), ElementsAre(Pair("a", "1")));
}

TEST(PropertiesFile, EndsLinesAtLineFeedCarriageReturnOrBoth) {
  EXPECT_THAT(Read("a=1\r\nb=2\rc=3\nd=4\r"),
              ElementsAre(Pair("a", "1"), Pair("b", "2"), Pair("c", "3"), Pair("d", "4")));
}

TEST(PropertiesFile, DecodesEscapes) {
  EXPECT_THAT(Read("a=\\t\\n\\r\\f\\\\\\q\\=\\:\\#"), ElementsAre(Pair("a", "\t\n\r\f\\q=:#")));
  EXPECT_THAT(Read("a\\ b\\=c\\:d=1"), ElementsAre(Pair("a b=c:d", "1")));
  EXPECT_THAT(Read("\\#a=1"), ElementsAre(Pair("#a", "1")));
  EXPECT_THAT(Read("a=\\u0041\\u00e9\\u20AC"), ElementsAre(Pair("a", "Aé€")));
  EXPECT_THAT(Read("a=\\ud83d\\ude00"), ElementsAre(Pair("a", "😀"))) << "a pair of surrogates";
  EXPECT_THAT(Read("a=\\ud83dx\nb=\\ude00\nc=\\ud83d\\u0041"),
              ElementsAre(Pair("a", "\uFFFDx"), Pair("b", "\uFFFD"), Pair("c", "\uFFFDA")));
  EXPECT_THAT(Read(R"(a=C:\\Users\\u0041)"), ElementsAre(Pair("a", R"(C:\Users\u0041)")));
}

TEST(PropertiesFile, NamesTheLineOfAnEscapeThatIsNone) {
  for (const char* value : {"\\u12", "\\uxyzw", "\\u", "\\u00g0"}) {
    const Status status = ParseProperties(std::string("a=1\n\nb=2,\\\n3\nc=") + value).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("line 5: \\u needs four hexadecimal digits"));
  }
}

TEST(PropertiesFile, TheLastOfTwoEqualKeysCounts) {
  EXPECT_THAT(Read("a=1\nb=2\na = 3"), ElementsAre(Pair("b", "2"), Pair("a", "3")));
  EXPECT_EQ(ParseProperties("a=1\n\n# x\na=2").value().front().line, 4);
}

TEST(PropertiesFile, ReadsUtf8AndElseLatin1) {
  EXPECT_THAT(Read("name=caf\xC3\xA9"), ElementsAre(Pair("name", "caf\xC3\xA9")));
  EXPECT_THAT(Read("name=caf\xE9"), ElementsAre(Pair("name", "caf\xC3\xA9")));
  EXPECT_THAT(Read("\xEF\xBB\xBFname=1"), ElementsAre(Pair("name", "1"))) << "a byte order mark";
}

TEST(PropertiesFile, TakesWhateverBytesThereAre) {
  EXPECT_THAT(Read(std::string_view("a\0b=\0\x01", 6)),
              ElementsAre(Pair(std::string("a\0b", 3), std::string("\0\x01", 2))));
  EXPECT_THAT(Read("=1"), ElementsAre(Pair("", "1")));
  EXPECT_EQ(Read("a=" + std::string(1 << 20, 'x')).front().second.size(), 1u << 20);
  EXPECT_THAT(Read(std::string(100'000, '\\')), ElementsAre(Pair(std::string(50'000, '\\'), "")));
  std::string steps = "a=";
  for (int i = 0; i < 50'000; ++i) steps += "\\\n";
  EXPECT_THAT(Read(steps + "1"), ElementsAre(Pair("a", "1")));
}

}  // namespace
}  // namespace tandem::apps
