#include "serve/http/cors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::serve {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Pair;

HttpRequest Preflight(std::string origin, std::string headers = "authorization,content-type") {
  HttpRequest request;
  request.method = "OPTIONS";
  request.path = "/v1/chat/completions";
  request.headers = {{"origin", std::move(origin)},
                     {"access-control-request-method", "POST"},
                     {"access-control-request-headers", std::move(headers)}};
  return request;
}

HttpHeaders AnswerTo(const Cors& cors, const HttpRequest& preflight) {
  HttpHead head;
  std::string body;
  cors.AnswerPreflight(preflight, "POST")->Poll(head, body);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(body, "");
  return head.headers;
}

TEST(CorsTest, WithoutOriginsNothingIsTold) {
  const Cors cors({});
  EXPECT_FALSE(cors.is_on());
  EXPECT_FALSE(cors.Allows("https://chat.example"));
  EXPECT_THAT(cors.Headers("https://chat.example"), IsEmpty());
}

TEST(CorsTest, OnlyExactOriginsAreAllowed) {
  const Cors cors({"https://chat.example", "http://localhost:3000"});
  EXPECT_THAT(cors.Headers("https://chat.example"),
              Contains(Pair("Access-Control-Allow-Origin", "https://chat.example")));
  for (const char* other : {"https://chat.example:8443", "http://chat.example", "null", "",
                            "https://evil.chat.example", "https://chat.example.evil", "*"}) {
    EXPECT_FALSE(cors.Allows(other)) << other;
    // A cache must know that others get another answer.
    EXPECT_EQ(cors.Headers(other), (HttpHeaders{{"Vary", "Origin"}})) << other;
  }
}

TEST(CorsTest, AnyOriginNeverGoesWithCredentials) {
  const Cors cors({"*"});
  const HttpHeaders headers = cors.Headers("https://chat.example");
  EXPECT_THAT(headers, Contains(Pair("Access-Control-Allow-Origin", "*")));
  for (const HttpHeaders& all : {headers, AnswerTo(cors, Preflight("https://chat.example"))}) {
    for (const auto& [name, value] : all) EXPECT_EQ(name.find("Credentials"), std::string::npos);
  }
}

TEST(CorsTest, APreflightIsAQuestionWithOriginAndMethod) {
  HttpRequest request = Preflight("https://chat.example");
  EXPECT_TRUE(Cors::IsPreflight(request));
  request.method = "GET";
  EXPECT_FALSE(Cors::IsPreflight(request));
  request = Preflight("");
  EXPECT_FALSE(Cors::IsPreflight(request));
}

TEST(CorsTest, APreflightAllowsThePathsMethodsAndTheHeadersThatItAsksFor) {
  const Cors cors({"https://chat.example"});
  const HttpHeaders good =
      AnswerTo(cors, Preflight("https://chat.example", "authorization, X-Stainless-OS"));
  EXPECT_THAT(good, Contains(Pair("Access-Control-Allow-Methods", "POST")));
  EXPECT_THAT(good,
              Contains(Pair("Access-Control-Allow-Headers", "authorization, X-Stainless-OS")));
  EXPECT_THAT(AnswerTo(cors, Preflight("https://evil.example")), IsEmpty());
  for (const auto& [name, value] : AnswerTo(cors, Preflight("https://chat.example", "a\"; b:c"))) {
    EXPECT_NE(name, "Access-Control-Allow-Headers");
  }
}

TEST(ParseOriginsTest, TakesOriginsAsBrowsersSendThem) {
  EXPECT_EQ(*ParseOrigins("https://Chat.Example,http://localhost:3000,,http://[::1]:8"),
            (std::vector<std::string>{"https://chat.example", "http://localhost:3000",
                                      "http://[::1]:8"}));
  EXPECT_EQ(*ParseOrigins("*"), (std::vector<std::string>{"*"}));
  EXPECT_THAT(*ParseOrigins(""), IsEmpty());
  for (const char* bad :
       {"chat.example", "https://", "https://chat.example/", "null", "https://chat.example/path",
        "ftp://chat.example", "https://*.example", "https://a b"}) {
    EXPECT_FALSE(ParseOrigins(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace tandem::serve
