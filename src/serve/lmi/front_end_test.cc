// The routes of djl-serving over a scripted engine.
#include "serve/lmi/front_end.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "base/reason.h"
#include "serve/json.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kAsk = R"({"inputs": "tandem", "parameters": {"max_new_tokens": 3}})";

ServerOptions With(lmi::Settings settings, lmi::ModelLoader* loader = nullptr) {
  ServerOptions options;
  options.lmi = std::move(settings);
  options.lmi_loader = loader;
  return options;
}

TEST(LmiFrontEndTest, ModelsAreNamedOrAlone) {
  const TestServer server;
  HttpClient client = server.Client();
  for (const char* path :
       {"/invocations", "/invocations?model_name=tandem", "/invocations?model_name=ensemble",
        "/predictions/tandem", "/predictions/tandem/1", "/models/tandem/invoke"}) {
    const Result<ClientResponse> response = client.Post(path, kAsk);
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->status, 200) << path;
    EXPECT_EQ(response->body, R"({"generated_text": "One"})") << path;
  }
  for (const char* path : {"/invocations?model_name=other", "/predictions/other",
                           "/predictions/other/2", "/models/other/invoke"}) {
    const Result<ClientResponse> response = client.Post(path, kAsk);
    EXPECT_EQ(response->status, 404) << path;
    EXPECT_EQ(response->body, R"({"code": 404, "type": "ModelNotFoundException", )"
                              R"("message": "Model or workflow not found: other"})");
  }
  EXPECT_EQ(client.Post("/predictions/tandem/2", kAsk)->status, 404);
  const Result<ClientResponse> attribute = client.Post(
      "/invocations", kAsk, {{"X-Amzn-SageMaker-Custom-Attributes", "a=b; model_name=other"}});
  EXPECT_EQ(attribute->status, 404);
}

TEST(LmiFrontEndTest, AModelHasToBeNamedAmongSeveral) {
  TestServer server;
  ASSERT_TRUE(server.engines.Add("second", server.service).ok());
  HttpClient client = server.Client();
  const Result<ClientResponse> response = client.Post("/invocations", kAsk);
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(response->body, R"({"code": 400, "type": "BadRequestException", )"
                            R"("message": "Parameter model_name is required."})");
  EXPECT_EQ(client.Post("/invocations?model_name=second", kAsk)->status, 200);
}

TEST(LmiFrontEndTest, RefusalsNameTheField) {
  const TestServer server;
  HttpClient client = server.Client();
  const auto body = [&](std::string_view text, const HttpHeaders& headers = {}) {
    const Result<ClientResponse> response = client.Post("/invocations", text, headers);
    EXPECT_EQ(response->status, 424) << text;
    return response->body;
  };
  EXPECT_EQ(body("{}"), R"({"code": 424, "error": "inputs: is required"})");
  EXPECT_EQ(body(R"({"inputs": "a", "parameters": {"max_new_tokens": 0}})"),
            R"({"code": 424, "error": "max_new_tokens: must be at least 1"})");
  EXPECT_EQ(body(R"({"inputs": "a", "parameters": {"temperature": "hot"}})"),
            R"({"code": 424, "error": "temperature: must be a number, not a string"})");
  EXPECT_EQ(
      body(kAsk, {{"X-Amzn-SageMaker-Adapter-Identifier", "mine"}}),
      R"({"code": 424, "error": "X-Amzn-SageMaker-Adapter-Identifier: is not supported by this )"
      R"(server: it has no adapters"})");
  EXPECT_EQ(client.Send("GET", "/invocations", "")->status, 405);
  EXPECT_EQ(client.Send("GET", "/invocations", "")->body,
            R"({"code": 405, "type": "MethodNotAllowedException", )"
            R"("message": "Method Not Allowed: /invocations takes POST"})");
  EXPECT_EQ(client.Post("/predictions", kAsk)->status, 404);
}

TEST(LmiFrontEndTest, WhatHasNoEffectIsTold) {
  const TestServer server;
  const Result<ClientResponse> response = server.Client().Post(
      "/invocations",
      R"({"inputs": "tandem", "parameters": {"max_new_tokens": 3, "watermark": true}})");
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->Header("x-tandem-ignored"), "watermark");
}

TEST(LmiFrontEndTest, ABodyHasALimit) {
  lmi::Settings settings;
  settings.max_request_size = 100;
  const TestServer server({}, With(settings));
  const Result<ClientResponse> response =
      server.Client().Post("/invocations", std::string(200, ' '));
  EXPECT_EQ(response->status, 413);
}

TEST(LmiFrontEndTest, TheInferenceIdIsTheRequestsId) {
  const TestServer server;
  HttpClient client = server.Client();
  const Result<ClientResponse> response =
      client.Post("/invocations", kAsk, {{"X-Amzn-SageMaker-Inference-Id", "abc-1"}});
  EXPECT_EQ(response->Header("x-request-id"), "abc-1");
  EXPECT_EQ(client
                .Post("/invocations", kAsk,
                      {{"X-Amzn-SageMaker-Inference-Id", "abc-1"}, {"X-Request-Id", "mine"}})
                ->Header("x-request-id"),
            "mine");
}

TEST(LmiFrontEndTest, KeysGuardEverythingButPing) {
  ServerOptions options;
  options.api_keys = {"secret"};
  const TestServer server({}, options);
  HttpClient client = server.Client();
  EXPECT_EQ(client.Get("/ping")->status, 200);
  for (const char* path : {"/invocations", "/predictions/tandem", "/models", "/server/logging"}) {
    EXPECT_EQ(client.Post(path, kAsk)->status, 401) << path;
  }
  EXPECT_EQ(client.Get("/models")->status, 401);
  EXPECT_EQ(client.Get("/server/metrics")->status, 401);
  EXPECT_EQ(client.Post("/invocations", kAsk, {{"Authorization", "Bearer secret"}})->status, 200);
}

TEST(LmiFrontEndTest, TheRoutesCanBeSwitchedOff) {
  lmi::Settings settings;
  settings.enabled = false;
  const TestServer server({}, With(settings));
  EXPECT_EQ(server.Client().Get("/ping")->status, 404);
}

TEST(LmiPingTest, TellsEveryModel) {
  TestServer server;
  HttpClient client = server.Client();
  const auto ping = [&] { return *client.Get("/ping"); };
  EXPECT_EQ(ping().status, 200);
  EXPECT_EQ(ping().body, R"({"tandem": {"status": "Healthy"}})");
  server.models.SetState("second", kserve::ModelState::kLoading, "");
  EXPECT_EQ(ping().status, 200);
  EXPECT_EQ(ping().body, R"({"second": {"status": "PENDING"}, "tandem": {"status": "Healthy"}})");
  server.models.SetState("second", kserve::ModelState::kFailed, "no such file");
  EXPECT_EQ(ping().status, 500);
  EXPECT_EQ(ping().body, R"({"second": {"status": "FAILED"}, "tandem": {"status": "Healthy"}})");
  server.models.Forget("second");
  server.engine.SetHealth(1000, {});
  EXPECT_EQ(ping().status, 500);
  EXPECT_EQ(ping().body, R"({"tandem": {"status": "Unhealthy"}})");
  server.engine.SetHealth(0, {});
  EXPECT_EQ(ping().status, 200);
  server.models.SetLeaving();
  EXPECT_EQ(ping().status, 503);
}

TEST(LmiPingTest, StatusesFollowTheSettings) {
  const auto status = [](const lmi::Settings& settings, kserve::ModelState state) {
    TestServer server({}, With(settings));
    server.models.SetState("second", state, "");
    return server.Client().Get("/ping")->status;
  };
  lmi::Settings multi;
  multi.allow_multi_status = true;
  EXPECT_EQ(status(multi, kserve::ModelState::kLoading), 207);
  lmi::Settings all;
  all.needs_all_ready = true;
  EXPECT_EQ(status(all, kserve::ModelState::kLoading), 503);
  lmi::Settings healthy;
  healthy.keep_healthy = true;
  EXPECT_EQ(status(healthy, kserve::ModelState::kFailed), 200);
}

TEST(LmiPingTest, ErrorsThatCameTooOftenEndIt) {
  lmi::Settings settings;
  settings.error_rates.model = lmi::ErrorRate{2, std::chrono::minutes(1)};
  const TestServer server({}, With(settings));
  HttpClient client = server.Client();
  EXPECT_EQ(client.Post("/invocations", R"({"inputs": "fail now"})")->status, 424);
  EXPECT_EQ(client.Get("/ping")->status, 200);
  EXPECT_EQ(client.Post("/invocations", R"({"inputs": "fail now"})")->status, 424);
  EXPECT_EQ(client.Get("/ping")->status, 503);
}

// The answer is left for the test to read.
Status AskForEndlessStream(HttpClient& client) {
  const std::string body =
      R"({"inputs": "endless", "stream": true, "parameters": {"max_new_tokens": 2000}})";
  return client.WriteRaw(
      fmt::format("POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body));
}

TEST(LmiLimitsTest, BeyondTheQueueThereIsAnAnswerAtOnce) {
  lmi::Settings settings;
  settings.job_queue_size = 1;
  TestServer server({}, With(settings));
  server.engine.Pause();
  HttpClient waiting = server.Client();
  ASSERT_TRUE(waiting.Connect().ok());
  ASSERT_TRUE(waiting
                  .WriteRaw(fmt::format("POST /invocations HTTP/1.1\r\nHost: localhost\r\n"
                                        "Content-Length: {}\r\n\r\n{}",
                                        kAsk.size(), kAsk))
                  .ok());
  ASSERT_TRUE(Eventually([&] { return server.engine.open_sequences() == 1; }));
  const Result<ClientResponse> refused = server.Client().Post("/invocations", kAsk);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->Header("retry-after"), "1");
  EXPECT_TRUE(refused->body.starts_with(R"({"code": 503, "type": "WlmCapacityException")"))
      << refused->body;
  server.engine.Resume();
  EXPECT_EQ(waiting.ReadResponse()->status, 200);
  EXPECT_TRUE(
      Eventually([&] { return server.Client().Post("/invocations", kAsk)->status == 200; }));
}

TEST(LmiLimitsTest, TheEnginesQueueHasTheSameAnswer) {
  FakeEngineOptions engine;
  engine.limits.max_queue_size = 1;
  const TestServer server(std::move(engine));
  EXPECT_EQ(server.Client()
                .Post("/invocations", R"({"inputs": "tandem", "parameters": {"n": 2}})")
                ->status,
            503);
}

TEST(LmiLimitsTest, AModelThatSaysNothingTimesOut) {
  lmi::Settings settings;
  settings.predict_timeout = milliseconds(50);
  settings.chunked_read_timeout = milliseconds(50);
  TestServer server({}, With(settings));
  server.engine.Pause();
  const Result<ClientResponse> response = server.Client().Post("/invocations", kAsk);
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(response->body,
            R"({"code": 400, "type": "TranslateException", "message": "Time out in: 0.05"})");
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
  // A wait for a turn that is too long, too.
  server.engine.Resume();
  EXPECT_EQ(server.Client().Post("/invocations", R"({"inputs": "wait too long"})")->status, 400);
}

TEST(LmiLimitsTest, AStreamThatStopsEndsWithAnError) {
  lmi::Settings settings;
  settings.chunked_read_timeout = milliseconds(200);
  FakeEngineOptions engine;
  engine.step = milliseconds(2);
  TestServer server(std::move(engine), With(settings));
  HttpClient client = server.Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(AskForEndlessStream(client).ok());
  std::string all;
  while (all.find("token") == std::string::npos) all += *client.ReadRaw(4096);
  server.engine.Pause();
  while (all.find("0\r\n\r\n") == std::string::npos) {
    const Result<std::string> more = client.ReadRaw(4096);
    ASSERT_TRUE(more.ok() && !more->empty());
    all += *more;
  }
  EXPECT_NE(all.find("Read chunk timeout."), std::string::npos);
  EXPECT_NE(all.find(R"("finish_reason": "error")"), std::string::npos);
}

TEST(LmiLimitsTest, AClientThatLeavesFreesItsSequence) {
  TestServer server;
  {
    HttpClient client = server.Client();
    ASSERT_TRUE(client.Connect().ok());
    ASSERT_TRUE(AskForEndlessStream(client).ok());
    ASSERT_TRUE(client.ReadRaw(64).ok());
  }
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
}

TEST(LmiAsyncTest, AnAnswerIsFetchedByItsToken) {
  TestServer server;
  HttpClient client = server.Client();
  server.engine.Pause();
  const Result<ClientResponse> begun =
      client.Post("/invocations", kAsk, {{"x-synchronous", "false"}});
  EXPECT_EQ(begun->status, 200);
  EXPECT_EQ(begun->body, "");
  const std::string token(begun->Header("x-next-token"));
  ASSERT_FALSE(token.empty());
  EXPECT_EQ(begun->Header("x-amzn-sagemaker-custom-attributes"), "x-next-token=" + token);
  const Result<ClientResponse> pending =
      client.Post("/invocations", "", {{"x-starting-token", token}});
  EXPECT_EQ(pending->status, 202);
  EXPECT_FALSE(pending->Header("x-next-token").empty());
  server.engine.Resume();
  Result<ClientResponse> answer = pending;
  EXPECT_TRUE(Eventually([&] {
    answer = client.Post("/invocations", "",
                         {{"X-Amzn-SageMaker-Custom-Attributes", "x-starting-token=" + token}});
    return answer->status != 202;
  }));
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, R"({"generated_text": "One"})");
  EXPECT_EQ(answer->Header("x-next-token"), "");
  const Result<ClientResponse> unknown =
      client.Post("/invocations", "", {{"x-starting-token", "0123"}});
  EXPECT_EQ(unknown->status, 400);
  EXPECT_EQ(unknown->body, R"({"code": 400, "type": "BadRequestException", )"
                           R"("message": "Invalid x-starting-token: 0123"})");
}

TEST(LmiAsyncTest, ErrorsAreFetchedToo) {
  TestServer server;
  HttpClient client = server.Client();
  const Result<ClientResponse> begun =
      client.Post("/invocations", "{}", {{"x-synchronous", "false"}});
  EXPECT_EQ(begun->status, 200);
  const std::string token(begun->Header("x-next-token"));
  Result<ClientResponse> answer = begun;
  EXPECT_TRUE(Eventually([&] {
    answer = client.Post("/invocations", "", {{"x-starting-token", token}});
    return answer->status != 202;
  }));
  EXPECT_EQ(answer->status, 424);
}

TEST(LmiAsyncTest, AnotherKeysTokenIsUnknown) {
  ServerOptions options;
  options.api_keys = {"one", "two"};
  const TestServer server({}, options);
  HttpClient client = server.Client();
  const Result<ClientResponse> begun = client.Post(
      "/invocations", kAsk, {{"x-synchronous", "false"}, {"Authorization", "Bearer one"}});
  const std::string token(begun->Header("x-next-token"));
  EXPECT_EQ(
      client
          .Post("/invocations", "", {{"x-starting-token", token}, {"Authorization", "Bearer two"}})
          ->status,
      400);
}

std::string BeginLater(HttpClient& client, std::string_view body) {
  const Result<ClientResponse> begun =
      client.Post("/invocations", body, {{"x-synchronous", "false"}});
  EXPECT_EQ(begun->status, 200);
  return std::string(begun->Header("x-next-token"));
}

std::string Endless(int tokens) {
  return fmt::format(R"({{"inputs": "endless", "parameters": {{"max_new_tokens": {}}}}})", tokens);
}

TEST(LmiAsyncTest, AnOrderlyEndWaitsForThemAndLetsThemBeFetched) {
  TestServer server;
  Status end = Internal("not ended");
  std::thread runner([&] { end = server.server->Run(); });
  HttpClient client = server.Client();
  const std::string complete = BeginLater(client, kAsk);
  ASSERT_TRUE(Eventually([&] { return server.server->active_requests() == 0; }));
  server.engine.Pause();
  const std::string running = BeginLater(client, Endless(50));
  EXPECT_TRUE(Eventually([&] { return server.server->active_requests() == 1; }));
  server.server->Shutdown();
  ASSERT_TRUE(Eventually([&] { return client.Get("/server/metrics")->status == 503; }));
  const auto fetch = [&](const std::string& token, const char* path = "/invocations") {
    return server.Client().Post(path, "", {{"x-starting-token", token}});
  };
  EXPECT_EQ(client.Post("/invocations", kAsk, {{"x-synchronous", "false"}})->status, 503);
  EXPECT_EQ(fetch(complete)->body, R"({"generated_text": "One"})");
  EXPECT_EQ(fetch(complete, "/predictions/tandem")->status, 200);
  EXPECT_EQ(fetch(running)->status, 202);
  EXPECT_EQ(fetch("0123")->status, 400);
  server.engine.Resume();
  runner.join();
  EXPECT_TRUE(end.ok());
  const std::string metrics = server.metrics.Text(server.engines.Stats());
  EXPECT_NE(metrics.find("tandem_choices_finished_total{reason=\"length\"} 2\n"), std::string::npos)
      << metrics;
}

TEST(LmiAsyncTest, AnOrderlyEndDoesNotWaitForThemForEver) {
  ServerOptions options;
  options.shutdown_timeout = milliseconds(50);
  FakeEngineOptions slow;
  slow.step = milliseconds(5);
  TestServer server(slow, options);
  std::thread runner([&] { EXPECT_TRUE(server.server->Run().ok()); });
  HttpClient client = server.Client();
  EXPECT_FALSE(BeginLater(client, Endless(2000)).empty());
  server.server->Shutdown();
  runner.join();
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
}

// Loads "good" models; others fail.
class FakeLoader final : public lmi::ModelLoader {
 public:
  Status Load(const lmi::LoadRequest& request) override {
    if (request.url == "large") return ResourceExhausted("it needs more memory than there is");
    if (request.url != "good") return NotFound("there is nothing at " + request.url);
    TANDEM_RETURN_IF_ERROR(server->engines.Add(request.name, server->service));
    return {};
  }
  Status Unload(std::string_view name) override { return server->engines.Remove(name); }
  lmi::ModelOrigin OriginOf(std::string_view name) const override {
    return {name == "tandem" ? "/opt/ml/model" : "good", name != "tandem"};
  }

  TestServer* server = nullptr;
};

class LmiManagementTest : public testing::Test {
 protected:
  LmiManagementTest() : server_({}, With(MultiModel(), &loader_)) { loader_.server = &server_; }

  static lmi::Settings MultiModel() {
    lmi::Settings settings;
    settings.multi_model = true;
    return settings;
  }
  ClientResponse Send(std::string_view method, std::string_view path, std::string_view body = "") {
    return *server_.Client().Send(method, path, body);
  }

  FakeLoader loader_;
  TestServer server_;
};

TEST_F(LmiManagementTest, LoadsListsAndUnloads) {
  const ClientResponse loaded =
      Send("POST", "/models", R"({"model_name": "second", "url": "good"})");
  EXPECT_EQ(loaded.status, 200);
  EXPECT_EQ(loaded.body, R"({"status": "Model \"second\" registered."})");
  EXPECT_EQ(Send("GET", "/models").body,
            R"({"models": [{"modelName": "second", "modelUrl": "good", "status": "READY"}, )"
            R"({"modelName": "tandem", "modelUrl": "/opt/ml/model", "status": "READY"}]})");
  EXPECT_EQ(Send("GET", "/models?limit=1").body,
            R"({"nextPageToken": "1", "models": [{"modelName": "second", "modelUrl": "good", )"
            R"("status": "READY"}]})");
  EXPECT_EQ(Send("GET", "/models?limit=1&next_page_token=1").body,
            R"({"models": [{"modelName": "tandem", "modelUrl": "/opt/ml/model", )"
            R"("status": "READY"}]})");
  EXPECT_EQ(Send("POST", "/models/second/invoke", kAsk).status, 200);
  const ClientResponse gone = Send("DELETE", "/models/tandem");
  EXPECT_EQ(gone.status, 200);
  EXPECT_EQ(gone.body, R"({"status": "Model or workflow \"tandem\" unregistered"})");
}

TEST_F(LmiManagementTest, DescribesAModel) {
  const std::string text = Send("GET", "/models/tandem").body;
  const Result<Json> json = ParseJson(text);
  ASSERT_TRUE(json.ok()) << text;
  const Json& workflow = json->AsArray()->at(0);
  EXPECT_EQ(*workflow.Find("workflowName")->AsString(), "tandem");
  const Json& model = workflow.Find("models")->AsArray()->at(0);
  EXPECT_EQ(*model.Find("queueSize")->AsInt(), 1000);
  EXPECT_EQ(*model.Find("status")->AsString(), "Healthy");
  EXPECT_TRUE(*model.Find("loadedAtStartup")->AsBool());
  const Json& group = model.Find("workerGroups")->AsArray()->at(0);
  EXPECT_EQ(*group.Find("device")->Find("deviceType")->AsString(), "cpu");
  EXPECT_EQ(*group.Find("workers")->AsArray()->at(0).Find("status")->AsString(), "READY");
  EXPECT_EQ(Send("GET", "/models/other").status, 404);
}

TEST_F(LmiManagementTest, TellsWhyAModelIsNotLoaded) {
  EXPECT_EQ(Send("POST", "/models?url=large&model_name=big").status, 507);
  EXPECT_EQ(Send("POST", "/models?url=nowhere").status, 404);
  EXPECT_EQ(Send("POST", "/models?url=good&model_name=tandem").status, 409);
  // The inference protocol's names of the same engine.
  EXPECT_EQ(Send("POST", "/models?url=good&model_name=preprocessing").status, 409);
  EXPECT_EQ(Send("POST", "/models").body, R"({"code": 400, "type": "BadRequestException", )"
                                          R"("message": "Parameter url is required."})");
  EXPECT_EQ(Send("POST", "/models?url=good&model_name=..%2Fetc").status, 400);
  EXPECT_EQ(Send("DELETE", "/models/other").status, 404);
}

TEST_F(LmiManagementTest, NeedNotWait) {
  const ClientResponse scheduled =
      Send("POST", "/models?url=good&model_name=second&synchronous=false&max_worker=1");
  EXPECT_EQ(scheduled.status, 202);
  EXPECT_EQ(scheduled.body, R"({"status": "Model \"second\" registration scheduled."})");
  EXPECT_EQ(scheduled.Header("x-tandem-ignored"), "max_worker");
  EXPECT_TRUE(Eventually([&] { return Send("GET", "/models/second").status == 200; }));
}

TEST_F(LmiManagementTest, AModelHasOneWorker) {
  EXPECT_EQ(Send("PUT", "/models/tandem?min_worker=1&max_worker=1").status, 200);
  EXPECT_EQ(Send("PUT", "/models/tandem?max_worker=2").status, 400);
  EXPECT_EQ(Send("PUT", "/models/other").status, 404);
}

TEST_F(LmiManagementTest, AdaptersAndWorkflowsAreRefusedByName) {
  for (const char* path : {"/models/tandem/adapters?name=a&src=b", "/adapters?name=a&src=b"}) {
    const ClientResponse refused = Send("POST", path);
    EXPECT_EQ(refused.status, 400);
    EXPECT_NE(refused.body.find("adapters are not supported"), std::string::npos);
  }
  EXPECT_EQ(Send("POST", "/workflows?url=x").status, 400);
  EXPECT_EQ(Send("GET", "/workflows").body,
            R"({"workflows": [{"workflowName": "tandem", "version": null}]})");
}

TEST(LmiServerRoutesTest, ModelsOfAnOrdinaryServerStay) {
  const TestServer server;
  HttpClient client = server.Client();
  EXPECT_EQ(client.Send("POST", "/models?url=x", "")->status, 400);
  EXPECT_EQ(client.Send("DELETE", "/models/tandem", "")->status, 400);
  EXPECT_EQ(client.Get("/models")->body,
            R"({"models": [{"modelName": "tandem", "modelUrl": "", "status": "READY"}]})");
}

TEST(LmiServerRoutesTest, MetricsHaveDjlsNamesToo) {
  const TestServer server;
  HttpClient client = server.Client();
  EXPECT_EQ(client.Post("/invocations", kAsk)->status, 200);
  const std::string all = client.Get("/server/metrics")->body;
  EXPECT_NE(all.find("tandem_http_responses_total"), std::string::npos);
  EXPECT_NE(all.find("Response_2XX_total 1\n"), std::string::npos);
  EXPECT_EQ(client.Get("/server/metrics?name[]=WlmError_total")->body,
            "# TYPE WlmError_total counter\nWlmError_total 0\n");
}

TEST(LmiServerRoutesTest, TheLogsLevelCanBeSet) {
  const TestServer server;
  HttpClient client = server.Client();
  EXPECT_EQ(client.Send("POST", "/server/logging?level=info", "")->body, R"({"status": "OK"})");
  EXPECT_EQ(client.Send("POST", "/server/logging?level=loud", "")->status, 400);
}

}  // namespace
}  // namespace tandem::serve
