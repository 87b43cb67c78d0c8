// Streams of the whole server over a scripted engine: many at once, clients that go or do not read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "serve/json.h"
#include "serve/server/server.h"
#include "serve/testing/completions.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using std::chrono::milliseconds;

TEST(ServerStreamsTest, TwentyParallelRequestsOfTheGenerateRoute) {
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

TEST(ServerStreamsTest, TwoHundredConcurrentStreams) {
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

TEST(ServerStreamsTest, StreamsHoldStopStringsBackAcrossChunks) {
  TestServer server;
  HttpClient client = server.Client();
  const Result<ClientResponse> head = client.OpenStream(
      kCompletions,
      R"({"prompt":"endless","max_tokens":100,"stream":true,"stop":["h abcX","gh abcdefgh a"]})");
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(ReadStream(client), "abcdef");
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
}

TEST(ServerStreamsTest, OffsetsOfAStreamsLogProbsCountCharacters) {
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

TEST(ServerStreamsTest, AConnectionStreamsAgainAndAgain) {
  TestServer server;
  HttpClient client = server.Client();
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(client.OpenStream(kCompletions, Completion("tandem", 30, true))->status, 200);
    EXPECT_EQ(ReadStream(client), "One behind the other.");
  }
}

TEST(ServerStreamsTest, ClientsThatGoAtAnyByteFreeTheirRequests) {
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

TEST(ServerStreamsTest, AClientThatGoesIsNoticedAtOnceAlsoWithoutAStream) {
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

TEST(ServerStreamsTest, AStreamThatWaitsIsKeptAliveByComments) {
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

TEST(ServerStreamsTest, OurClientSkipsTheCommentsOfAStream) {
  ServerOptions options;
  options.http.limits.keep_alive_interval = std::chrono::milliseconds(1);
  TestServer server(Paced(milliseconds(5)), options);
  HttpClient client = server.Client();
  ASSERT_TRUE(client.OpenStream("/v1/completions", Completion("tandem", 3, true)).ok());
  EXPECT_EQ(ReadStream(client), "One");
}

TEST(ServerStreamsTest, AnAnswerThatIsNoStreamHasNoComments) {
  ServerOptions options;
  options.http.limits.keep_alive_interval = std::chrono::milliseconds(1);
  TestServer server(Paced(milliseconds(5)), options);
  const auto response = server.Client().Post("/v1/completions", Completion("tandem", 3, false));
  ASSERT_TRUE(response.ok());
  EXPECT_TRUE(response->body.starts_with("{")) << response->body;
}

TEST(ServerStreamsTest, AnEchoBeginsEveryChoiceOfAStreamAlsoOneThatIsAheadOfIt) {
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

TEST(ServerStreamsTest, ASlowReaderIsCutWithoutAnEndMarkAndOthersAreNot) {
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

// Clients that shut down their side after the request, as `nc -N` does, still read.
TEST(ServerStreamsTest, AClientThatOnlyStopsSendingGetsItsAnswer) {
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

}  // namespace
}  // namespace tandem::serve
