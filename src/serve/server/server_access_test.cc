// Who may ask the server what: keys, origins of pages, hosts, public addresses.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "serve/server/server.h"
#include "serve/testing/completions.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

TEST(ServerAccessTest, KeysGuardEveryRouteButHealth) {
  ServerOptions options;
  options.api_keys = {"first-key", "second-key"};
  TestServer server({}, options);
  HttpClient client = server.Client();
  EXPECT_EQ(client.Get("/health")->status, 200);
  EXPECT_EQ(client.Get("/v2/health/ready")->status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/v2", "/v2/models/ensemble", "/nothing"}) {
    const Result<ClientResponse> refused = client.Get(path);
    EXPECT_EQ(refused->status, 401) << path;
    EXPECT_EQ(refused->body.find("first-key"), std::string::npos);
  }
  EXPECT_EQ(client.Post(kGenerate, "{}")->status, 401);
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "Bearer first-ke"}})->status, 401);
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "Bearer first-key2"}})->status, 401);
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "first-key"}})->status, 401);
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "Bearer first-key"}})->status, 200);
  EXPECT_EQ(client.Get("/v1/models", {{"Authorization", "Bearer second-key"}})->status, 200);
  EXPECT_EQ(client.Get("/v1/models", {{"api-key", "second-key"}})->status, 200);
  EXPECT_EQ(client.Get("/v1/models", {{"api-key", "second-ke"}})->status, 401);
}

TEST(ServerAccessTest, EveryRouteButLivenessAndReadinessNeedsTheKey) {
  ServerOptions options;
  options.api_keys = {"key"};
  options.metrics_port = 0;
  TestServer server({}, options);
  std::set<std::string> open;
  for (const Route* route : server.server->Routes()) {
    std::string path;
    for (const char c : route->pattern) path += c == '{' || c == '}' || c == '*' ? 'x' : c;
    std::vector<std::string> methods = {route->method};
    if (route->method == "GET") methods.emplace_back("HEAD");
    for (const std::string& method : methods) {
      // A client of its own: a refused body ends the connection.
      HttpClient client = server.Client();
      const Result<ClientResponse> response = client.Send(method, path, "");
      ASSERT_TRUE(response.ok()) << method << " " << path;
      if (response->status != 401) open.insert(fmt::format("{} {}", method, path));
    }
  }
  EXPECT_EQ(open, (std::set<std::string>{"GET /health", "HEAD /health", "GET /ping", "HEAD /ping",
                                         "GET /v1/health/live", "HEAD /v1/health/live",
                                         "GET /v1/health/ready", "HEAD /v1/health/ready",
                                         "GET /v2/health/live", "HEAD /v2/health/live",
                                         "GET /v2/health/ready", "HEAD /v2/health/ready"}));
  HttpClient metrics("127.0.0.1", server.server->metrics_port());
  EXPECT_EQ(metrics.Get("/metrics")->status, 401);
  EXPECT_EQ(metrics.Get("/metrics", {{"Authorization", "Bearer key"}})->status, 200);
}

TEST(ServerAccessTest, PagesOfOtherOriginsAreRefusedUnlessTheyAreNamed) {
  const auto ask = [](const TestServer& server, const char* origin, HttpHeaders more = {}) {
    more.emplace_back("Origin", origin);
    return *server.Client().Post(kCompletions, Completion("tandem", 3, false), more);
  };
  constexpr const char* kAllowed = "access-control-allow-origin";
  TestServer closed;
  EXPECT_EQ(ask(closed, "http://localhost:3000").status, 200);  // a page of this machine
  EXPECT_EQ(ask(closed, "http://localhost:3000").Header(kAllowed), "");
  // As a browser sends it for any page without asking first; the answer could not be read anyway.
  EXPECT_EQ(ask(closed, "https://chat.example").status, 403);
  EXPECT_EQ(ask(closed, "null").status, 403);

  ServerOptions options;
  options.cors_origins = {"https://chat.example"};
  TestServer named({}, options);
  EXPECT_EQ(ask(named, "https://chat.example").status, 200);
  EXPECT_EQ(ask(named, "https://chat.example").Header(kAllowed), "https://chat.example");
  EXPECT_EQ(ask(named, "https://evil.example").status, 403);
  EXPECT_EQ(ask(named, "https://evil.example").Header(kAllowed), "");

  options.api_keys = {"key"};
  TestServer keyed({}, options);
  const ClientResponse refused = ask(keyed, "https://chat.example");
  EXPECT_EQ(refused.status, 401);  // and the page can read why
  EXPECT_EQ(refused.Header(kAllowed), "https://chat.example");
  EXPECT_EQ(ask(keyed, "https://chat.example", {{"Authorization", "Bearer key"}}).status, 200);
}

TEST(ServerAccessTest, ABrowsersQuestionIsAnsweredWithoutAKey) {
  const HttpHeaders question = {{"Origin", "https://chat.example"},
                                {"Access-Control-Request-Method", "POST"},
                                {"Access-Control-Request-Headers", "authorization,content-type"}};
  ServerOptions options;
  options.api_keys = {"key"};
  TestServer closed({}, options);
  EXPECT_EQ(closed.Client().Send("OPTIONS", kCompletions, "", question)->status, 401);

  options.cors_origins = {"https://chat.example"};
  TestServer named({}, options);
  HttpClient client = named.Client();
  const ClientResponse answer = *client.Send("OPTIONS", kCompletions, "", question);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Header("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(answer.Header("access-control-allow-methods"), "POST");
  EXPECT_EQ(answer.Header("access-control-allow-headers"), "authorization,content-type");
  EXPECT_EQ(answer.Header("vary"), "Origin");
  EXPECT_EQ(client.Send("OPTIONS", kCompletions, "")->status, 401);  // no browser's question
}

TEST(ServerAccessTest, TheKeyIsAskedForBeforeTheBody) {
  ServerOptions options;
  options.api_keys = {"key"};
  TestServer server({}, options);
  const char* const kBodies[] = {
      "Content-Length: 61865984\r\n",
      "Content-Length: 61865984\r\nExpect: 100-continue\r\n",
      "Content-Length: 61865984\r\nAuthorization: Bearer other\r\n",
      "Transfer-Encoding: chunked\r\n",
  };
  for (const std::string_view path : {kGenerate, kCompletions}) {
    for (const char* body : kBodies) {
      HttpClient client = server.Client();
      ASSERT_TRUE(client.Connect().ok());
      ASSERT_TRUE(
          client.WriteRaw(fmt::format("POST {} HTTP/1.1\r\nHost: x\r\n{}\r\n", path, body)).ok());
      const std::string head = *client.ReadRaw(4096);
      EXPECT_TRUE(head.starts_with("HTTP/1.1 401 Unauthorized\r\n")) << head;
      EXPECT_NE(head.find("WWW-Authenticate: Bearer\r\n"), std::string::npos) << head;
      EXPECT_NE(head.find("Connection: close\r\n"), std::string::npos) << head;
    }
  }
  const std::string metrics =
      server.Client().Get("/metrics", {{"Authorization", "bearer  key"}})->body;
  EXPECT_NE(metrics.find("tandem_http_responses_total{front_end=\"openai\",status=\"401\"} 4"),
            std::string::npos)
      << metrics;
}

TEST(ServerAccessTest, HealthTakesNoLargeBodyFromAnyone) {
  ServerOptions options;
  options.api_keys = {"key"};
  TestServer server({}, options);
  HttpClient client = server.Client();
  for (const char* path : {"/health", "/v2/health/live", "/v2/health/ready"}) {
    EXPECT_EQ(client.Send("GET", path, "", {{"Content-Length", "5000"}})->status, 413) << path;
  }
}

TEST(ServerAccessTest, ForeignHostsAreRefusedWithoutAKey) {
  const auto ask = [](const TestServer& server, const char* host) {
    HttpClient client = server.Client();
    EXPECT_TRUE(client.Connect().ok());
    EXPECT_TRUE(
        client.WriteRaw(fmt::format("GET /v1/models HTTP/1.1\r\nHost: {}\r\n\r\n", host)).ok());
    return client.ReadResponse()->status;
  };
  TestServer server;
  EXPECT_EQ(ask(server, "127.0.0.1:8000"), 200);
  EXPECT_EQ(ask(server, "127.3.2.1"), 200);
  EXPECT_EQ(ask(server, "LocalHost:9"), 200);
  EXPECT_EQ(ask(server, "[::1]:8000"), 200);
  EXPECT_EQ(ask(server, "evil.example"), 403);
  EXPECT_EQ(ask(server, "127.0.0.1.evil.example:8000"), 403);
  EXPECT_EQ(ask(server, "192.168.0.1"), 403);
  ServerOptions options;
  options.allowed_hosts = {"chat.example"};
  TestServer named({}, options);
  EXPECT_EQ(ask(named, "Chat.Example:443"), 200);
  EXPECT_EQ(ask(named, "127.0.0.1"), 200);
  EXPECT_EQ(ask(named, "evil.example"), 403);
  ServerOptions keyed_options;
  keyed_options.api_keys = {"key"};
  TestServer keyed({}, keyed_options);
  EXPECT_EQ(ask(keyed, "evil.example"), 401);  // the key guards it
}

TEST(ServerAccessTest, CallersWithDifferentKeysShareNoCachedPrompts) {
  const auto key_of = [](TestServer& server, std::string_view path, std::string_view body,
                         const char* key) {
    HttpClient client = server.Client();
    EXPECT_EQ(client.Post(path, body, {{"Authorization", fmt::format("Bearer {}", key)}})->status,
              200);
    return server.engine.last_request().cache_key;
  };
  constexpr std::string_view kGenerate = "/v2/models/ensemble/generate";
  constexpr std::string_view kBody = R"({"text_input": "ab", "max_tokens": 2})";
  ServerOptions options;
  options.api_keys = {"one", "two"};
  TestServer server({}, options);
  const std::string one = key_of(server, kGenerate, kBody, "one");
  EXPECT_FALSE(one.empty());
  EXPECT_NE(key_of(server, kGenerate, kBody, "two"), one);
  EXPECT_EQ(key_of(server, kCompletions, Completion("ab", 2, false), "one"), one);
  options.api_keys = {"one"};
  TestServer single({}, options);
  EXPECT_EQ(key_of(single, kGenerate, kBody, "one"), "");
}

TEST(ServerAccessTest, AnEmptyKeyIsNoKey) {
  TestServer server;
  ServerOptions options;
  options.http.port = 0;
  options.api_keys = {""};
  EXPECT_EQ(Server::Start(options, server.engines, server.models, server.metrics).status().code(),
            Code::kInvalidArgument);
}

TEST(ServerAccessTest, RefusesAPublicAddressWithoutAKey) {
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("127.8.0.1"));
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_FALSE(IsLoopback("::"));
  TestServer server;
  ServerOptions options;
  options.http.host = "0.0.0.0";
  options.http.port = 0;
  const auto refused = Server::Start(options, server.engines, server.models, server.metrics);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--insecure"), std::string::npos);
  options.insecure = true;
  EXPECT_TRUE(Server::Start(options, server.engines, server.models, server.metrics).ok());
}

}  // namespace
}  // namespace tandem::serve
