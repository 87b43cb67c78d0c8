#include "serve/http/wire.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::serve {
namespace {

TEST(WireTest, TakesTargetsApart) {
  EXPECT_EQ(ParseTarget("/a/b?c=http://d/e").path, "/a/b");
  EXPECT_EQ(ParseTarget("/a/b?c=http://d/e#f?g").query, "c=http://d/e");
  EXPECT_EQ(ParseTarget("/a").query, "");
  EXPECT_EQ(ParseTarget("/a").authority, "");
  EXPECT_EQ(ParseTarget("HTTP://host:1/a?b").path, "/a");
  EXPECT_EQ(ParseTarget("http://host:1/a").authority, "host:1");
  EXPECT_EQ(ParseTarget("http://host?a").authority, "host");
  EXPECT_EQ(ParseTarget("http://host?a").path, "/");
  for (const char* bad : {"", "*", "a/b", "a/b?c=http://d/e", "host:443", "ftp://host/a"}) {
    EXPECT_EQ(ParseTarget(bad).path, "") << bad;
  }
}

TEST(WireTest, FindsTheHostOfAnAuthority) {
  EXPECT_EQ(HostOfAuthority("Chat.Example:8000"), "chat.example");
  EXPECT_EQ(HostOfAuthority("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(HostOfAuthority("[::1]:80"), "::1");
  EXPECT_EQ(HostOfAuthority("[::1]"), "::1");
  EXPECT_EQ(HostOfAuthority("localhost:"), "localhost");
  EXPECT_EQ(HostOfAuthority(""), "");
  for (const char* bad : {"a b", "a/b", "user@host", "a:b", "a:1:2", "::1", "[::1", "[::1]80",
                          "[a/b]", "a\"b", "a:80,b"}) {
    EXPECT_EQ(HostOfAuthority(bad), std::nullopt) << bad;
  }
}

TEST(WireTest, TakesQueriesApart) {
  using Parameters = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(ParseQuery("a=1&b=x+y%2Bz&c&&d=e=f"),
            (Parameters{{"a", "1"}, {"b", "x y+z"}, {"c", ""}, {"d", "e=f"}}));
  EXPECT_EQ(ParseQuery(""), Parameters());
}

TEST(WireTest, DecodesPercentSigns) {
  EXPECT_EQ(PercentDecode("org%2Fmodel%2f1"), "org/model/1");
  EXPECT_EQ(PercentDecode("%41%zz%4"), "A%zz%4");
  EXPECT_EQ(PercentDecode("100%"), "100%");
  EXPECT_EQ(PercentDecode("%252F"), "%2F");
  EXPECT_EQ(PercentDecode("%+1% 1%-1"), "%+1% 1%-1");
}

}  // namespace
}  // namespace tandem::serve
