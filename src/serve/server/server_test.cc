// The whole server over a scripted engine: models, health, orderly shutdown, bad input, metrics.
#include "serve/server/server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "serve/json.h"
#include "serve/testing/completions.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using std::chrono::milliseconds;

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
