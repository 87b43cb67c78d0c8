#include "serve/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace tandem::serve {
namespace {

std::string Problem(std::string_view text) {
  const Result<Json> json = ParseJson(text);
  return json.ok() ? "" : json.status().message();
}

TEST(JsonTest, ReadsEveryKindOfValue) {
  const Result<Json> json = ParseJson(
      R"( {"s":"a\u00e9\n","i":-3,"u":18446744073709551615,"d":2.5,"b":true,"n":null,"l":[1,[]]} )");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(*json->Find("s")->AsString(), "a\xC3\xA9\n");
  EXPECT_EQ(*json->Find("i")->AsInt(), -3);
  EXPECT_EQ(*json->Find("u")->AsUint(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(*json->Find("d")->AsDouble(), 2.5);
  EXPECT_TRUE(*json->Find("b")->AsBool());
  EXPECT_TRUE(json->Find("n")->is_null());
  EXPECT_EQ(json->Find("l")->AsArray()->size(), 2u);
  EXPECT_EQ(json->Find("missing"), nullptr);
}

TEST(JsonTest, WritesBackWhatItRead) {
  const std::string text = R"({"a":[1,-2.5,"x\"\\",null,true,{}],"b":{"c":[]}})";
  EXPECT_EQ(ParseJson(text)->Dump(), text);
}

TEST(JsonTest, NamesPositionAndMemberOfBrokenText) {
  EXPECT_NE(Problem(R"({"temperature": NaN})").find("NaN and Infinity are not JSON numbers"),
            std::string::npos);
  EXPECT_NE(Problem(R"({"temperature": NaN})").find("\"temperature\""), std::string::npos);
  EXPECT_NE(Problem(R"({"temperature": 1e400})").find("too large"), std::string::npos);
  EXPECT_NE(Problem(R"({"prompt": "abc)").find("ends too early"), std::string::npos);
  EXPECT_NE(Problem("").find("ends too early"), std::string::npos);
  EXPECT_NE(Problem("{} x").find("byte 3"), std::string::npos);
}

TEST(JsonTest, RefusesWhatIsNotUtf8) {
  EXPECT_NE(Problem("\"\xff\""), "");
  EXPECT_NE(Problem(R"("\ud800")"), "");
  EXPECT_NE(Problem(R"("\ud800\u0041")"), "");
  EXPECT_EQ(Problem(R"("\ud83d\ude42")"), "");
}

TEST(JsonTest, BoundsDepthAndValues) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(Problem(nested(100)), "");
  EXPECT_NE(Problem(nested(101)).find("100 levels"), std::string::npos);
  EXPECT_NE(Problem(std::string(250'000, '[')).find("100 levels"), std::string::npos);
  JsonLimits limits;
  limits.max_values = 3;
  EXPECT_TRUE(ParseJson("[1,2]", limits).ok());
  EXPECT_FALSE(ParseJson("[1,2,3]", limits).ok());
}

TEST(JsonTest, RefusesANameThatAppearsTwiceUnlessAllowed) {
  EXPECT_NE(Problem(R"({"a":1,"b":{"c":1,"c":2}})").find("\"c\" appears twice"), std::string::npos);
  JsonLimits limits;
  limits.allow_duplicates = true;
  EXPECT_EQ(ParseJson(R"({"c":1,"c":2})", limits)->AsObject()->size(), 2u);
}

TEST(JsonWriterTest, WritesNumbersThatReadBackEqual) {
  std::string out;
  JsonWriter(out)
      .BeginArray()
      .Float(0.0f)
      .Float(-0.25f)
      .Float(0.1f)
      .Double(1e300)
      .Float(NAN)
      .EndArray();
  EXPECT_EQ(out, "[0.0,-0.25,0.1,1e+300,null]");
}

TEST(JsonWriterTest, PutsSpacesAsPythonDoes) {
  std::string out;
  JsonWriter(out, /*spaces=*/true)
      .BeginObject()
      .Key("a")
      .BeginArray()
      .Int(1)
      .Null()
      .EndArray()
      .Key("b")
      .String("c, d")
      .EndObject();
  EXPECT_EQ(out, R"({"a": [1, null], "b": "c, d"})");
}

TEST(JsonWriterTest, MakesBrokenUtf8Readable) {
  std::string out;
  JsonWriter(out).String("a\xC3\xA9\xC3|\xED\xA0\x80\x01");
  EXPECT_EQ(out, "\"a\xC3\xA9\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\\u0001\"");
}

}  // namespace
}  // namespace tandem::serve
