#include "serve/http/access.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace tandem::serve {
namespace {

TEST(AccessTest, TakesABearerKeyInAnyCaseAndSpacing) {
  const Access access({"first", "second"}, std::nullopt);
  for (const char* good :
       {"Bearer first", "bearer second", "BEARER   first", "Bearer\tfirst", "  Bearer  first  "}) {
    EXPECT_TRUE(access.HasKey(good)) << good;
  }
  for (const char* bad : {"", "Bearer", "Bearer ", "first", "Bearerfirst", "Basic first",
                          "Bearer firs", "Bearer first2", "Bearer FIRST", "Bearer first second"}) {
    EXPECT_FALSE(access.HasKey(bad)) << bad;
  }
  EXPECT_TRUE(Access({}, std::nullopt).HasKey(""));
  EXPECT_FALSE(Access({""}, std::nullopt).HasKey("Bearer "));
}

TEST(AccessTest, TakesTheKeyOfAzuresHeaderWhereThereIsNoBearer) {
  const Access access({"first", "second"}, std::nullopt);
  EXPECT_TRUE(access.HasKey("", "first"));
  EXPECT_TRUE(access.HasKey("Basic x", " second "));
  EXPECT_EQ(access.CallerOf("", "second"), access.CallerOf("Bearer second"));
  EXPECT_FALSE(access.HasKey("", "third"));
  EXPECT_FALSE(access.HasKey("", "Bearer first"));
  EXPECT_FALSE(access.HasKey("Bearer third", "first"));
}

TEST(AccessTest, KnowsTheServersNames) {
  const Access access({}, std::vector<std::string>{"Chat.Example", "10.1.2.3"});
  for (const char* good :
       {"localhost", "127.0.0.1", "127.8.9.10", "::1", "chat.example", "10.1.2.3", ""}) {
    EXPECT_TRUE(access.AllowsHost(good)) << good;
  }
  for (const char* bad : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                          "chat.example.evil", "128.0.0.1", "0.0.0.0", "::2"}) {
    EXPECT_FALSE(access.AllowsHost(bad)) << bad;
  }
  EXPECT_TRUE(Access({}, std::vector<std::string>{"*"}).AllowsHost("evil.example"));
  EXPECT_TRUE(Access({}, std::nullopt).AllowsHost("evil.example"));
}

TEST(AccessTest, PagesOfItsOwnHostsMaySendRequests) {
  const Access access({}, std::vector<std::string>{"chat.example"});
  for (const char* good : {"", "http://localhost:3000", "https://127.0.0.1", "http://[::1]:8000",
                           "https://chat.example:8443"}) {
    EXPECT_TRUE(access.AllowsOrigin(good)) << good;
  }
  for (const char* bad : {"null", "https://evil.example", "http://localhost.evil.example",
                          "file://localhost", "https://chat.example@evil.example", "localhost"}) {
    EXPECT_FALSE(access.AllowsOrigin(bad)) << bad;
  }
  EXPECT_TRUE(Access({"key"}, std::nullopt).AllowsOrigin("https://evil.example"));
}

TEST(ParseKeysTest, TakesOneKeyALineWithAnyLineEnd) {
  const std::vector<std::string> keys = {"one", "two#2"};
  EXPECT_EQ(*ParseKeys("one\ntwo#2\n"), keys);
  EXPECT_EQ(*ParseKeys("one\r\ntwo#2"), keys);
  EXPECT_EQ(*ParseKeys("\xEF\xBB\xBFone\r\ntwo#2\r\n"), keys);
  EXPECT_EQ(*ParseKeys("# who: the web front end\n\n  one\t\n \r\n  # old: three\ntwo#2\n\n"),
            keys);
}

TEST(ParseKeysTest, RefusesWhatNoClientCanSend) {
  for (const char* text : {"", "\n\r\n", "# no key\n", "one\ntwo words\n", "k\xC3\xA4y\n"}) {
    const Result<std::vector<std::string>> keys = ParseKeys(text);
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(keys.status().message().find("words"), std::string::npos);  // keys are never reported
  }
  EXPECT_NE(ParseKeys("one\ntwo words\n").status().message().find("line 2"), std::string::npos);
}

}  // namespace
}  // namespace tandem::serve
