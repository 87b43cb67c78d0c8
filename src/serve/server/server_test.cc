// The whole server over a scripted engine: many clients at once, disconnecting clients, orderly
// shutdown, keys, bad input.
#include "serve/server/server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "serve/json.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kGenerate = "/v2/models/ensemble/generate";
constexpr std::string_view kCompletions = "/v1/completions";

std::string Completion(std::string_view prompt, int max_tokens, bool stream) {
  return fmt::format(R"({{"prompt":"{}","max_tokens":{},"stream":{}}})", prompt, max_tokens,
                     stream);
}

FakeEngineOptions Paced(Nanos step) {
  FakeEngineOptions options;
  options.step = step;
  return options;
}

// The text of a stream of completions; "broken" if it did not end with [DONE].
std::string ReadStream(HttpClient& client) {
  std::string text;
  for (bool done = false;;) {
    const Result<std::optional<std::string>> event = client.NextEvent();
    if (!event.ok()) return "broken: " + event.status().message();
    if (!event->has_value()) return done ? text : "broken: no end mark";
    if (**event == "[DONE]") {
      done = true;
      continue;
    }
    const Result<Json> json = ParseJson(**event);
    if (!json.ok() || json->Find("error") != nullptr) return "broken: " + **event;
    for (const Json& choice : *json->Find("choices")->AsArray())
      text += *choice.Find("text")->AsString();
  }
}

TEST(ServerTest, TwentyParallelRequestsOfTheGenerateRoute) {
  TestServer server(Paced(milliseconds(1)));
  const std::string body =
      R"({"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2})";
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([&] {
      const Result<ClientResponse> response = server.Client().Post(kGenerate, body);
      if (response.ok() && response->status == 200 &&
          response->body.find(R"("text_output":"\nMachine learning is"})") != std::string::npos) {
        ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 20);
}

TEST(ServerTest, TwoHundredConcurrentStreams) {
  FakeEngineOptions engine = Paced(milliseconds(5));
  engine.limits.max_choices = 256;
  TestServer server(std::move(engine));
  constexpr int kStreams = 200;
  std::vector<HttpClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(server.Client());
    // The head comes with the first token: all streams are opened before any is read.
    ASSERT_TRUE(clients.back().Connect().ok());
    const std::string body = Completion("endless", 20, true);
    ASSERT_TRUE(clients.back()
                    .WriteRaw(fmt::format(
                        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                        kCompletions, body.size(), body))
                    .ok());
  }
  for (HttpClient& client : clients) {
    std::string all;
    while (all.find("[DONE]") == std::string::npos) {
      const Result<std::string> read = client.ReadRaw(64 << 10);
      ASSERT_TRUE(read.ok() && !read->empty());
      all += *read;
    }
    EXPECT_NE(all.find("200 OK"), std::string::npos);
  }
  EXPECT_EQ(server.engine.open_sequences(), 0);
}

TEST(ServerTest, StreamsHoldStopStringsBackAcrossChunks) {
  TestServer server;
  HttpClient client = server.Client();
  const Result<ClientResponse> head = client.OpenStream(
      kCompletions,
      R"({"prompt":"endless","max_tokens":100,"stream":true,"stop":["h abcX","gh abcdefgh a"]})");
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(ReadStream(client), "abcdef");
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
}

TEST(ServerTest, OffsetsOfAStreamsLogProbsCountCharacters) {
  const TestServer server;
  HttpClient client = server.Client();
  const std::string body = R"({"prompt":"emoji","max_tokens":12,"logprobs":0,"stream":true})";
  ASSERT_EQ(client.OpenStream(kCompletions, body)->status, 200);
  std::vector<int64_t> offsets;
  for (std::string data = client.NextEvent()->value(); data != "[DONE]";
       data = client.NextEvent()->value()) {
    const Json json = ParseJson(data).value();
    const Json* logprobs = json.Find("choices")->AsArray()->front().Find("logprobs");
    if (logprobs->is_null()) continue;
    for (const Json& offset : *logprobs->Find("text_offset")->AsArray()) {
      offsets.push_back(*offset.AsInt());
    }
  }
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 1, 1, 2, 3, 4, 5, 6, 6, 6, 6, 7}));
}

TEST(ServerTest, AConnectionStreamsAgainAndAgain) {
  TestServer server;
  HttpClient client = server.Client();
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(client.OpenStream(kCompletions, Completion("tandem", 30, true))->status, 200);
    EXPECT_EQ(ReadStream(client), "One behind the other.");
  }
}

TEST(ServerTest, ClientsThatGoAtAnyByteFreeTheirRequests) {
  TestServer server(Paced(Nanos(200'000)));
  const std::string body = Completion("endless", 1000, true);
  const std::string request =
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                  kCompletions, body.size(), body);
  std::mt19937 random(1);
  for (int i = 0; i < 150; ++i) {
    HttpClient client = server.Client();
    ASSERT_TRUE(client.Connect().ok());
    // Half disconnect while they send, half while they read.
    const size_t sent = random() % 2 == 0 ? random() % request.size() : request.size();
    ASSERT_TRUE(client.WriteRaw(std::string_view(request).substr(0, sent)).ok());
    if (sent < request.size()) continue;
    for (size_t left = random() % 2000; left > 0;) {
      const Result<std::string> read = client.ReadRaw(left);
      ASSERT_TRUE(read.ok() && !read->empty());
      left -= read->size();
    }
  }
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
  EXPECT_TRUE(Eventually([&] { return server.server->active_requests() == 0; }));
  EXPECT_EQ(server.Client().Post(kCompletions, Completion("tandem", 3, false))->status, 200);
}

TEST(ServerTest, AClientThatGoesIsNoticedAtOnceAlsoWithoutAStream) {
  TestServer server(Paced(milliseconds(1)));
  {
    HttpClient client = server.Client();
    const std::string body = Completion("endless", 2000, false);
    ASSERT_TRUE(client.Connect().ok());
    ASSERT_TRUE(client
                    .WriteRaw(fmt::format(
                        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                        kCompletions, body.size(), body))
                    .ok());
    ASSERT_TRUE(Eventually([&] { return server.engine.open_sequences() == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return server.engine.num_cancelled() == 1; }));
}

TEST(ServerTest, AFullQueueSaysWhenToComeBack) {
  FakeEngineOptions engine;
  engine.limits.max_queue_size = 2;
  TestServer server(std::move(engine));
  server.engine.Pause();
  std::vector<HttpClient> holders;
  for (int i = 0; i < 2; ++i) {
    holders.push_back(server.Client());
    const std::string body = Completion("tandem", 3, false);
    ASSERT_TRUE(holders.back().Connect().ok());
    ASSERT_TRUE(holders.back()
                    .WriteRaw(fmt::format(
                        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                        kCompletions, body.size(), body))
                    .ok());
  }
  ASSERT_TRUE(Eventually([&] { return server.engine.open_sequences() == 2; }));
  // While nobody is served, a request is refused and not left to wait.
  const Result<ClientResponse> refused =
      server.Client().Post(kCompletions, Completion("tandem", 3, true));
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->Header("retry-after"), "1");
  EXPECT_NE(refused->body.find("rate_limit_exceeded"), std::string::npos);
  const Result<ClientResponse> other =
      server.Client().Post(kGenerate, R"({"text_input":"x","max_tokens":1})");
  EXPECT_EQ(other->status, 503);
  EXPECT_EQ(other->Header("retry-after"), "1");
  EXPECT_NE(other->body.find("Exceeds maximum queue size"), std::string::npos);
  EXPECT_NE(other->body.find("Maximum queue size of 2"), std::string::npos);
  server.engine.Resume();
  for (HttpClient& holder : holders) EXPECT_EQ(holder.ReadResponse()->status, 200);
}

TEST(ServerTest, AStreamThatWaitsIsKeptAliveByComments) {
  ServerOptions options;
  options.http.limits.keep_alive_interval = std::chrono::milliseconds(1);
  TestServer server({}, options);
  server.engine.Pause();
  HttpClient client = server.Client();
  const std::string body = Completion("tandem", 3, true);
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client
                  .WriteRaw(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                        "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
                                        body.size(), body))
                  .ok());
  std::string text;
  const auto read_until = [&](std::string_view wanted) {
    while (text.find(wanted) == std::string::npos) {
      const Result<std::string> read = client.ReadRaw(4096);
      if (!read.ok() || read->empty()) return false;
      text += *read;
    }
    return true;
  };
  ASSERT_TRUE(read_until(": keep-alive\n\n")) << text;
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream")) << text;
  server.engine.Resume();
  EXPECT_TRUE(read_until("data: [DONE]")) << text;
}

TEST(ServerTest, OurClientSkipsTheCommentsOfAStream) {
  ServerOptions options;
  options.http.limits.keep_alive_interval = std::chrono::milliseconds(1);
  TestServer server(Paced(milliseconds(5)), options);
  HttpClient client = server.Client();
  ASSERT_TRUE(client.OpenStream("/v1/completions", Completion("tandem", 3, true)).ok());
  EXPECT_EQ(ReadStream(client), "One");
}

TEST(ServerTest, AnAnswerThatIsNoStreamHasNoComments) {
  ServerOptions options;
  options.http.limits.keep_alive_interval = std::chrono::milliseconds(1);
  TestServer server(Paced(milliseconds(5)), options);
  const auto response = server.Client().Post("/v1/completions", Completion("tandem", 3, false));
  ASSERT_TRUE(response.ok());
  EXPECT_TRUE(response->body.starts_with("{")) << response->body;
}

TEST(ServerTest, AnEchoBeginsEveryChoiceOfAStreamAlsoOneThatIsAheadOfIt) {
  FakeEngineOptions engine;
  engine.last_sequence_first = true;
  TestServer server(std::move(engine));
  HttpClient client = server.Client();
  ASSERT_TRUE(client
                  .OpenStream(kCompletions,
                              R"({"prompt":["tandem","emoji"],"n":3,"max_tokens":4,"echo":true,)"
                              R"("logprobs":0,"stream":true})")
                  .ok());
  std::vector<std::string> texts(6);
  std::vector<std::vector<int64_t>> offsets(6);
  while (true) {
    const Result<std::optional<std::string>> event = client.NextEvent();
    ASSERT_TRUE(event.ok() && event->has_value());
    if (**event == "[DONE]") break;
    const Result<Json> json = ParseJson(**event);
    for (const Json& choice : *json->Find("choices")->AsArray()) {
      const auto index = static_cast<size_t>(*choice.Find("index")->AsInt());
      texts[index] += *choice.Find("text")->AsString();
      const Json& logprobs = *choice.Find("logprobs");
      if (logprobs.is_null()) continue;
      for (const Json& offset : *logprobs.Find("text_offset")->AsArray()) {
        offsets[index].push_back(*offset.AsInt());
      }
    }
  }
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(texts[i], i < 3 ? "tandemOne " : "emojih\xC3\xA9l");
    EXPECT_TRUE(std::ranges::is_sorted(offsets[i]));
    EXPECT_EQ(offsets[i].size(), i < 3 ? 11u : 10u);
  }
}

TEST(ServerTest, AnAnswersIdIsItsRequests) {
  TestServer server;
  const auto response = server.Client().Post("/v1/completions", Completion("tandem", 3, false),
                                             {{"X-Request-Id", "abc-1"}});
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->Header("x-request-id"), "abc-1");
  EXPECT_TRUE(response->body.starts_with(R"({"id":"cmpl-abc-1")")) << response->body;
}

TEST(ServerTest, UnknownFieldsAreNamedInAHeader) {
  TestServer server;
  for (const bool stream : {false, true}) {
    const auto response = server.Client().Post(
        "/v1/completions",
        fmt::format(R"({{"prompt":"tandem","stream":{},"tempperature":1,"x y":2}})", stream));
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->Header("x-tandem-ignored"), "tempperature, x?y");
  }
  const auto known = server.Client().Post("/v1/completions", Completion("tandem", 3, false));
  EXPECT_EQ(known->Header("x-tandem-ignored"), "");
}

TEST(ServerTest, ASlowReaderIsCutWithoutAnEndMarkAndOthersAreNot) {
  ServiceOptions service;
  service.stream_bytes = 4 << 10;
  ServerOptions options;
  options.http.limits.write_stall_timeout = milliseconds(300);
  options.http.limits.send_buffer_bytes = 8 << 10;
  TestServer server(Paced(Nanos(20'000)), options, service);
  HttpClient slow = server.Client();
  const std::string body = R"({"prompt":"endless","max_tokens":2000,"stream":true,"n":16})";
  ASSERT_TRUE(slow.Connect().ok());
  ASSERT_TRUE(
      slow.WriteRaw(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                "Content-Length: {}\r\n\r\n{}",
                                kCompletions, body.size(), body))
          .ok());
  HttpClient quick = server.Client();
  EXPECT_EQ(quick.Post(kCompletions, Completion("tandem", 30, false))->status, 200);
  EXPECT_TRUE(Eventually([&] { return server.engine.num_cancelled() > 0; }));
  EXPECT_TRUE(Eventually([&] { return server.server->active_requests() == 0; }));
  std::string all;
  for (Result<std::string> read = slow.ReadRaw(64 << 10); read.ok() && !read->empty();
       read = slow.ReadRaw(64 << 10)) {
    all += *read;
  }
  EXPECT_EQ(all.find("[DONE]"), std::string::npos);
}

TEST(ServerTest, KeysGuardEveryRouteButHealth) {
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

TEST(ServerTest, EventsOfTheCacheAreTakenOnceAndInOrder) {
  ServerOptions options;
  options.api_keys = {"key"};
  TestServer server({}, options);
  HttpClient client = server.Client();
  const HttpHeaders key = {{"Authorization", "Bearer key"}};
  EXPECT_EQ(client.Get("/kv_cache_events")->status, 401);
  const Result<ClientResponse> off = client.Get("/kv_cache_events", key);
  EXPECT_EQ(off->status, 400);
  EXPECT_THAT(off->body, testing::HasSubstr("--kv_event_buffer"));
  server.engine.AddKvEvent({.device_blocks = 8, .host_blocks = 2});
  server.engine.AddKvEvent({.id = 1, .kind = KvEvent::Kind::kStored, .hash = 11, .tokens = {7, 8}});
  server.engine.AddKvEvent(
      {.id = 5, .kind = KvEvent::Kind::kStored, .hash = 12, .parent = 11, .key = 99});
  server.engine.AddKvEvent({.id = 6, .kind = KvEvent::Kind::kUpdated, .hash = 12, .to_host = true});
  server.engine.AddKvEvent({.id = 7, .kind = KvEvent::Kind::kRemoved, .hash = 12});
  const Result<ClientResponse> taken = client.Post("/kv_cache_events/tandem", "", key);
  EXPECT_EQ(taken->status, 200);
  EXPECT_EQ(taken->Header("x-kv-events-lost"), "3");
  EXPECT_EQ(
      taken->body,
      R"([{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[8,2]}},)"
      R"({"event_id":1,"data":{"type":"stored","parent_hash":null,"blocks":[{"type":"stored_block",)"
      R"("block_hash":11,"tokens":[{"type":"unique_token","token_id":7,"token_extra_id":0},)"
      R"({"type":"unique_token","token_id":8,"token_extra_id":0}],"cache_level":0,"priority":35}]}},)"
      R"({"event_id":5,"data":{"type":"stored","parent_hash":11,"blocks":[{"type":"stored_block",)"
      R"("block_hash":12,"tokens":[],"cache_key_hash":99,"cache_level":0,"priority":35}]}},)"
      R"({"event_id":6,"data":{"type":"updated","block_hash":12,"cache_level":{"type":"event_diff",)"
      R"("new_value":1,"old_value":0},"priority":{"type":"event_diff","new_value":35,)"
      R"("old_value":35}}},)"
      R"({"event_id":7,"data":{"type":"removed","block_hashes":[12]}}])");
  EXPECT_EQ(client.Get("/kv_cache_events/nobody", key)->status, 404);
}

TEST(ServerTest, EveryRouteButLivenessAndReadinessNeedsTheKey) {
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

TEST(ServerTest, PagesOfOtherOriginsAreRefusedUnlessTheyAreNamed) {
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

TEST(ServerTest, ABrowsersQuestionIsAnsweredWithoutAKey) {
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

TEST(ServerTest, TheKeyIsAskedForBeforeTheBody) {
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

TEST(ServerTest, AModelThatFailedToLoadMakesTheServerNotReady) {
  TestServer server;
  server.models.SetState("other", kserve::ModelState::kFailed, "no such file");
  EXPECT_EQ(server.Client().Get("/v2/health/ready")->status, 400);
  EXPECT_EQ(server.Client().Get("/health")->status, 503);
  EXPECT_EQ(server.Client().Get("/v2/health/live")->status, 200);
  EXPECT_EQ(server.Client().Get("/v2/models/ensemble/ready")->status, 200);
  const std::string index = server.Client().Post("/v2/repository/index", "")->body;
  EXPECT_NE(index.find(R"("state":"UNAVAILABLE","reason":"no such file")"), std::string::npos)
      << index;
  server.models.SetState("other", kserve::ModelState::kUnavailable, "unloaded");
  EXPECT_EQ(server.Client().Get("/v2/health/ready")->status, 200);
}

TEST(ServerTest, HealthTakesNoLargeBodyFromAnyone) {
  ServerOptions options;
  options.api_keys = {"key"};
  TestServer server({}, options);
  HttpClient client = server.Client();
  for (const char* path : {"/health", "/v2/health/live", "/v2/health/ready"}) {
    EXPECT_EQ(client.Send("GET", path, "", {{"Content-Length", "5000"}})->status, 413) << path;
  }
}

TEST(ServerTest, ForeignHostsAreRefusedWithoutAKey) {
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

TEST(ServerTest, CallersWithDifferentKeysShareNoCachedPrompts) {
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

TEST(ServerTest, AnEmptyKeyIsNoKey) {
  TestServer server;
  ServerOptions options;
  options.http.port = 0;
  options.api_keys = {""};
  EXPECT_EQ(Server::Start(options, server.engines, server.models, server.metrics).status().code(),
            Code::kInvalidArgument);
}

TEST(ServerTest, ModelNamesMayHoldASlash) {
  TestServer server;
  ASSERT_TRUE(server.engines.Add("org/model 1", server.service).ok());
  HttpClient client = server.Client();
  EXPECT_EQ(client.Get("/v1/models/org%2Fmodel%201")->status, 200);
  EXPECT_EQ(client.Get("/v1/models/org/model%201")->status, 200);
  EXPECT_EQ(client.Get("/v1/models/org%252Fmodel%201")->status, 404);
  EXPECT_EQ(client.Get("/v1/models/org/model")->status, 404);
  const Result<ClientResponse> odd = client.Get("/v1/models/%ff%00%22");
  EXPECT_EQ(odd->status, 404);
  EXPECT_TRUE(ParseJson(odd->body).ok()) << odd->body;
}

// Clients that shut down their side after the request, as `nc -N` does, still read.
TEST(ServerTest, AClientThatOnlyStopsSendingGetsItsAnswer) {
  TestServer server(Paced(milliseconds(5)));
  for (const bool stream : {false, true}) {
    HttpClient client = server.Client();
    const std::string body = Completion("endless", 20, stream);
    ASSERT_TRUE(client.Connect().ok());
    ASSERT_TRUE(client
                    .WriteRaw(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\n"
                                          "Content-Length: {}\r\n\r\n{}",
                                          kCompletions, body.size(), body))
                    .ok());
    client.ShutdownWrite();
    const Result<ClientResponse> response = client.ReadResponse();
    ASSERT_TRUE(response.ok()) << response.status().message();
    EXPECT_EQ(response->status, 200);
    EXPECT_NE(response->body.find(stream ? "[DONE]" : "abcdefgh"), std::string::npos)
        << response->body;
  }
  EXPECT_EQ(server.engine.num_cancelled(), 0);
}

TEST(ServerTest, RefusesAPublicAddressWithoutAKey) {
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

TEST(ServerTest, HealthIsRedWithoutProgressAndWhenTheEngineHasFailed) {
  TestServer server;
  const auto green = [&] {
    const bool live = server.Client().Get("/v2/health/live")->status == 200;
    EXPECT_EQ(server.Client().Get("/health")->status == 200, live);
    return live;
  };
  EXPECT_TRUE(green());
  server.engine.SetHealth(29.9, {});
  EXPECT_TRUE(green());
  server.engine.SetHealth(30.0, {});
  EXPECT_FALSE(green());
  server.engine.SetHealth(0.1, {});
  EXPECT_TRUE(green()) << "it was a long step";
  server.engine.SetHealth(0.1, Unavailable("the device is lost"));
  EXPECT_FALSE(green());
}

TEST(ServerTest, HealthIsRedWhenTheChatTemplateOrGrammarsHaveStoppedForGood) {
  for (auto member : {&ByteCodec::chat_has_stopped, &ByteCodec::grammars_have_stopped}) {
    auto codec = std::make_unique<ByteCodec>();
    std::atomic<bool>& stopped = (*codec).*member;
    TestServer server({}, {}, {}, std::move(codec));
    const char* const checks[] = {"/health", "/v2/health/live", "/v2/health/ready"};
    for (const char* check : checks) EXPECT_EQ(server.Client().Get(check)->status, 200) << check;
    stopped = true;
    for (const char* check : checks) EXPECT_NE(server.Client().Get(check)->status, 200) << check;
  }
}

TEST(ServerTest, SigtermLetsRequestsFinishAndRefusesNewOnes) {
  TestServer server(Paced(milliseconds(5)));
  Status end = Internal("not ended");
  std::thread runner([&] { end = server.server->Run(); });
  HttpClient client = server.Client();
  ASSERT_EQ(client.OpenStream(kCompletions, Completion("endless", 100, true))->status, 200);
  HttpClient idle = server.Client();
  ASSERT_EQ(idle.Get("/health")->status, 200);
  HttpClient uploading = server.Client();
  ASSERT_TRUE(uploading.Connect().ok());
  ASSERT_TRUE(
      uploading
          .WriteRaw(fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                                "Expect: 100-continue\r\n\r\n",
                                kCompletions))
          .ok());
  ASSERT_EQ(*uploading.ReadRaw(25), "HTTP/1.1 100 Continue\r\n\r\n");
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(Eventually([&] { return server.Client().Get("/v2/health/ready")->status == 400; }));
  EXPECT_EQ(server.Client().Get("/health")->status, 503);
  EXPECT_EQ(server.Client().Get("/v2/health/live")->status, 200);
  const Result<ClientResponse> refused = idle.Post(kCompletions, Completion("tandem", 3, false));
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->Header("connection"), "close");
  ASSERT_TRUE(uploading.WriteRaw("{}").ok());
  EXPECT_EQ(uploading.ReadResponse()->status, 503);
  EXPECT_EQ(ReadStream(client).size(), 100u);
  runner.join();
  EXPECT_TRUE(end.ok());
  EXPECT_FALSE(server.Client().Get("/health").ok());
}

TEST(ServerTest, TheDrainEndsWithItsTimeAndTellsTheStreams) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(100);
  TestServer server(Paced(milliseconds(5)), options);
  Status end = Internal("not ended");
  std::thread runner([&] { end = server.server->Run(); });
  HttpClient client = server.Client();
  ASSERT_EQ(client.OpenStream(kCompletions, Completion("endless", 2000, true))->status, 200);
  server.server->Shutdown();
  const std::string text = ReadStream(client);
  EXPECT_NE(text.find("shutting down"), std::string::npos) << text;
  runner.join();
  EXPECT_TRUE(end.ok());
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
}

TEST(ServerTest, TheStreamsOfARemovedEngineAreToldOfTheEndToo) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(1);
  TestServer server(Paced(milliseconds(5)), options);
  std::thread runner([&] { EXPECT_TRUE(server.server->Run().ok()); });
  HttpClient client = server.Client();
  ASSERT_EQ(client.OpenStream(kCompletions, Completion("endless", 2000, true))->status, 200);
  ASSERT_TRUE(server.engines.Remove("tandem").ok());
  server.server->Shutdown();
  const std::string text = ReadStream(client);
  EXPECT_NE(text.find("shutting down"), std::string::npos) << text;
  runner.join();
}

TEST(ServerTest, ASecondSignalCutsTheDrainShort) {
  ServerOptions options;
  std::vector<int> announced;
  options.on_shutdown = [&](int requests) { announced.push_back(requests); };
  TestServer server(Paced(milliseconds(5)), options);
  Status end;
  std::thread runner([&] { end = server.server->Run(); });
  HttpClient client = server.Client();
  ASSERT_EQ(client.OpenStream(kCompletions, Completion("endless", 2000, true))->status, 200);
  server.server->Shutdown();
  EXPECT_TRUE(Eventually([&] { return server.Client().Get("/health")->status == 503; }));
  server.server->Shutdown();
  runner.join();
  EXPECT_EQ(announced, std::vector<int>{1});
  EXPECT_EQ(end.code(), Code::kCancelled);
}

TEST(ServerTest, HostileBodiesGetA4xxAndTheServerGoesOn) {
  TestServer server;
  HttpClient client = server.Client();
  const std::string deep = std::string(101, '[') + std::string(101, ']');
  const std::vector<std::string> bodies = {
      "",
      "{",
      "null",
      deep,
      std::string(250'000, '['),
      fmt::format(R"({{"prompt":"x","other":{}}})", deep),
      "{\"prompt\":\"\xff\"}",
      R"({"prompt":"\ud800"})",
      R"({"prompt":1e400})",
      R"({"prompt":"x","temperature":-0.5})",
      R"({"prompt":"x","temperature":"hot"})",
      R"({"prompt":"x","top_p":2})",
      R"({"prompt":"x","max_tokens":-1})",
      R"({"prompt":"x","max_tokens":99999999999999999999})",
      R"({"prompt":"x","n":0})",
      R"({"prompt":"x","n":4294967296})",
      R"({"prompt":"x","seed":1.5})",
      R"({"prompt":"x","stream":"yes"})",
      R"({"prompt":"x","stream_options":{"include_usage":3}})",
      R"({"prompt":"x","logprobs":21})",
      R"({"prompt":"x","logprobs":-1})",
      R"({"prompt":"x","stop":[1]})",
      R"({"prompt":"x","stop":)" + Json(Json::Array(100'000, Json(std::string("a")))).Dump() + "}",
      R"({"prompt":"x","logit_bias":{"9999999":1}})",
      R"({"prompt":"x","logit_bias":{"1":"a"}})",
      R"({"prompt":[1,"a"]})",
      R"({"prompt":[[1],[-5]]})",
      R"({"prompt":)" + Json(Json::Array(200, Json(std::string("a")))).Dump() + "}",
      fmt::format(R"({{"prompt":"{}"}})", std::string(1 << 20, 'a')),
  };
  for (const std::string& body : bodies) {
    const Result<ClientResponse> response = client.Post(kCompletions, body);
    ASSERT_TRUE(response.ok()) << response.status().message();
    EXPECT_EQ(response->status, 400) << body.substr(0, 100);
    EXPECT_NE(response->body.find("\"error\""), std::string::npos);
  }
  EXPECT_EQ(client.Post(kCompletions, std::string((16 << 20) + 1, ' '))->status, 413);
  EXPECT_EQ(server.engine.open_sequences(), 0);
  EXPECT_EQ(client.Post(kCompletions, Completion("tandem", 3, false))->status, 200);
}

TEST(ServerTest, OptionsReachTheEngine) {
  TestServer server;
  HttpClient client = server.Client();
  ASSERT_EQ(
      client
          .Post(
              kCompletions,
              R"({"prompt":"tandem","max_tokens":9,"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,
                          "presence_penalty":0.3,"frequency_penalty":0.4,"repetition_penalty":1.2,"seed":11,
                          "min_tokens":2,"ignore_eos":true,"logit_bias":{"5":-100},"bad_words":["no"],
                          "use_draft":false,"n":2})")
          ->status,
      200);
  const Request request = server.engine.last_request();
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.sampling.presence_penalty, 0.3f);
  EXPECT_EQ(request.sampling.frequency_penalty, 0.4f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.2f);
  EXPECT_EQ(request.sampling.min_tokens, 2);
  EXPECT_EQ(request.seed, 11u);
  EXPECT_EQ(request.num_choices, 2);
  EXPECT_TRUE(request.end_ids.empty());
  EXPECT_EQ(request.max_draft_len, 0);
  EXPECT_NE(request.constraint, nullptr);
  ASSERT_EQ(request.logit_bias.size(), 1u);
  ASSERT_EQ(
      client.Post(kGenerate, R"({"text_input":"x","max_tokens":3,"temperature":0.9,"end_id":-1})")
          ->status,
      200);
  const Request greedy = server.engine.last_request();
  EXPECT_TRUE(greedy.sampling.greedy());
  EXPECT_TRUE(greedy.end_ids.empty());
  ASSERT_EQ(client
                .Post(kGenerate, R"({"text_input":"x","max_tokens":3,"end_id":-1,
                                     "stop_words":["</s>"],"bad_words":["</s>"]})")
                ->status,
            200);
  const Request special = server.engine.last_request();
  EXPECT_EQ(special.end_ids, std::vector<int32_t>{ByteCodec::kEnd});
  EXPECT_EQ(special.banned_sequences, (std::vector<std::vector<int32_t>>{{ByteCodec::kEnd}}));
}

TEST(ServerTest, ModelsComeAndGoWhileOthersServe) {
  // Declared before the server, on whose threads its service ends.
  FakeEngine second_engine(Paced(milliseconds(1)));
  TestServer server(Paced(milliseconds(1)));
  HttpClient client = server.Client();
  const std::string body =
      R"({"model":"second","prompt":"endless","max_tokens":200,"stream":true})";
  EXPECT_EQ(client.Post(kCompletions, body)->status, 404);
  auto second = std::make_shared<GenerateService>(second_engine, *server.codec,
                                                  GenerationDefaults(), server.clock);
  ASSERT_TRUE(server.engines.Add("second", std::move(second)).ok());
  server.models.Add(kserve::MakeTextModel(*server.engines.Find("second"), "second", 8));
  EXPECT_EQ(client.Get("/v2/models/second/ready")->status, 200);
  const std::string list = client.Get("/v1/models")->body;
  EXPECT_NE(list.find(R"("id":"tandem")"), std::string::npos);
  EXPECT_NE(list.find(R"("id":"second")"), std::string::npos);
  ASSERT_EQ(client.OpenStream(kCompletions, body)->status, 200);
  EXPECT_EQ(server.engine.open_sequences(), 0);
  // A removed model is gone for new requests; the open one is answered to its end.
  ASSERT_TRUE(server.engines.Remove("second").ok());
  server.models.SetState("second", kserve::ModelState::kUnavailable, "unloaded");
  EXPECT_EQ(server.Client().Post(kCompletions, body)->status, 404);
  EXPECT_EQ(server.Client().Get("/v2/models/second/ready")->status, 400);
  EXPECT_EQ(server.Client().Post(kCompletions, Completion("tandem", 3, false))->status, 200);
  EXPECT_EQ(ReadStream(client).size(), 200u);
  EXPECT_EQ(second_engine.open_sequences(), 0);
}

TEST(ServerTest, MetricsTellWhatHappened) {
  TestServer server;
  HttpClient client = server.Client();
  ASSERT_EQ(client.Post(kCompletions, Completion("tandem", 30, false))->status, 200);
  ASSERT_EQ(client.Post(kCompletions, "{")->status, 400);
  const std::string text = client.Get("/metrics")->body;
  for (const char* line : {
           "tandem_http_responses_total{front_end=\"openai\",status=\"200\"} 1",
           "tandem_http_responses_total{front_end=\"openai\",status=\"400\"} 1",
           "tandem_choices_finished_total{reason=\"stop\"} 1",
           "tandem_time_to_first_token_seconds_count 1",
           "tandem_inter_token_seconds_count 20",
           "tandem_request_seconds_count 1",
           "tandem_kv_blocks{state=\"free\"} 1000",
           "tandem_kv_blocks{state=\"cached\"} 0",
           "tandem_kv_blocks{state=\"referenced\"} 0",
           "tandem_requests_running 0",
           "tandem_drafts_proposed_total",
           "tandem_drafts_accepted_total",
           "tandem_draft_rounds_total",
           "tandem_preemptions_total",
           "tandem_prefix_hit_tokens_total",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace tandem::serve
