// The built-in models through a server that has no engine. The cases of mock_llm are those of the
// protocol's public tests of its generate extension.
#include "serve/kserve/models/builtin_models.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <model_config.pb.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "serve/kserve/config_file.h"
#include "serve/testing/test_server.h"

namespace tandem::serve::kserve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Result<InferModelPtr> Make(const std::string& text) {
  inference::ModelConfig config;
  std::vector<Unfilled> unfilled;
  TANDEM_RETURN_IF_ERROR(ReadConfigText(text, "config.pbtxt", config, unfilled));
  return MakeBuiltinModel(config);
}

class BuiltinModelsTest : public testing::Test {
 protected:
  BuiltinModelsTest() {
    ServerOptions options;
    options.http.port = 0;
    server_ = Server::Start(options, engines_, models_, metrics_).value();
  }

  void Add(const std::string& text) { models_.Add(Make(text).value()); }
  HttpClient Client() const { return HttpClient("127.0.0.1", server_->port()); }
  ClientResponse Post(const std::string& path, const std::string& body) const {
    return Client().Post(path, body).value();
  }
  ClientResponse Generate(const std::string& body) const {
    return Post("/v2/models/mock_llm/generate", body);
  }
  // The data of each event; a reply of another type is a failure of the test.
  std::vector<std::string> Stream(const std::string& body) const {
    HttpClient client = Client();
    const ClientResponse head =
        client.OpenStream("/v2/models/mock_llm/generate_stream", body).value();
    EXPECT_EQ(head.status, 200) << head.body;
    EXPECT_EQ(head.Header("content-type"), "text/event-stream; charset=utf-8");
    std::vector<std::string> events;
    while (const auto event = client.NextEvent().value()) events.push_back(*event);
    return events;
  }
  // Both ways of generating refuse the body with the same words.
  void ExpectRefused(const std::string& body, const std::string& words) const {
    for (const char* route : {"generate", "generate_stream"}) {
      const ClientResponse response = Post(fmt::format("/v2/models/mock_llm/{}", route), body);
      EXPECT_EQ(response.status, 400) << body;
      EXPECT_THAT(response.body, AllOf(StartsWith(R"({"error":")"), HasSubstr(words))) << body;
    }
  }
  StatisticsSnapshot Statistics(std::string_view name) const {
    return models_.Statistics(name).value();
  }

  SteadyClock clock_;
  Metrics metrics_;
  ModelRegistry engines_;
  Repository models_{clock_};
  std::unique_ptr<Server> server_;
};

TEST_F(BuiltinModelsTest, AServerWithoutEnginesIsReadyAndHasNoModelOfOpenAi) {
  Add(R"(name: "simple" backend: "add_sub")");
  EXPECT_EQ(Client().Get("/v2/health/ready")->status, 200);
  EXPECT_EQ(Client().Get("/health")->status, 200);
  const ClientResponse none = Post("/v1/completions", R"({"model":"gpt","prompt":"a"})");
  EXPECT_EQ(none.status, 404);
  EXPECT_THAT(none.body, HasSubstr("model_not_found"));
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"a"})").status, 404);
  EXPECT_EQ(Client().Get("/v1/models")->body, R"({"object":"list","data":[]})");
  EXPECT_THAT(Client().Get("/metrics")->body, Not(HasSubstr("tandem_memory_free_bytes")));
}

TEST_F(BuiltinModelsTest, AddSubAddsAndSubtracts) {
  Add(R"(name: "simple" backend: "add_sub" max_batch_size: 8)");
  EXPECT_THAT(Client().Get("/v2/models/simple")->body,
              HasSubstr(R"({"name":"INPUT0","datatype":"INT32","shape":[-1,16]})"));
  const std::string body = R"({"id":"7","inputs":[
      {"name":"INPUT0","shape":[1,16],"datatype":"INT32",
       "data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,2147483647]},
      {"name":"INPUT1","shape":[1,16],"datatype":"INT32",
       "data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]})";
  const ClientResponse response = Post("/v2/models/simple/infer", body);
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.body, R"({"id":"7","model_name":"simple","model_version":"1","outputs":[)"
                           R"({"name":"OUTPUT0","datatype":"INT32","shape":[1,16],)"
                           R"("data":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,-2147483648]},)"
                           R"({"name":"OUTPUT1","datatype":"INT32","shape":[1,16],)"
                           R"("data":[-1,0,1,2,3,4,5,6,7,8,9,10,11,12,13,2147483646]}]})");
}

TEST_F(BuiltinModelsTest, AddSubTakesTheTypeOfTheConfig) {
  Add(R"(name: "floats" backend: "add_sub"
         input [{name: "INPUT0" data_type: TYPE_FP32 dims: [-1]},
                {name: "INPUT1" data_type: TYPE_FP32 dims: [-1]}]
         output [{name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1]},
                 {name: "OUTPUT1" data_type: TYPE_FP32 dims: [-1]}])");
  const auto body = [](int count) {
    return fmt::format(
        R"({{"inputs":[{{"name":"INPUT0","shape":[2],"datatype":"FP32","data":[1.5,2]}},)"
        R"({{"name":"INPUT1","shape":[{}],"datatype":"FP32","data":[{}0.5]}}],)"
        R"("outputs":[{{"name":"OUTPUT1"}}]}})",
        count, count == 2 ? "0.25," : "");
  };
  const ClientResponse response = Post("/v2/models/floats/infer", body(2));
  EXPECT_THAT(response.body, HasSubstr(R"("outputs":[{"name":"OUTPUT1")")) << "the one asked for";
  EXPECT_THAT(response.body, HasSubstr(R"("data":[1.25,1.5])"));
  EXPECT_THAT(Post("/v2/models/floats/infer", body(1)).body,
              HasSubstr("must have the shape of INPUT0"));
}

TEST_F(BuiltinModelsTest, IdentityReturnsTensorsOfAnyType) {
  Add(R"(name: "same" backend: "identity" max_batch_size: 4
         input [{name: "INPUT0" data_type: TYPE_STRING dims: [-1]},
                {name: "INPUT1" data_type: TYPE_FP16 dims: [-1, 2] optional: true}]
         output [{name: "OUTPUT0" data_type: TYPE_STRING dims: [-1]},
                 {name: "OUTPUT1" data_type: TYPE_FP16 dims: [-1, 2]}])");
  EXPECT_EQ(Post("/v2/models/same/infer", R"({"inputs":[{"name":"INPUT0","shape":[2,1],)"
                                          R"("datatype":"BYTES","data":["a","b"]}]})")
                .body,
            R"({"model_name":"same","model_version":"1","outputs":[{"name":"OUTPUT0",)"
            R"("datatype":"BYTES","shape":[2,1],"data":["a","b"]}]})");
  EXPECT_EQ(Post("/v2/models/same/generate", R"({"INPUT0":["a","b"]})").body,
            R"({"OUTPUT0":["a","b"],"model_name":"same","model_version":"1"})");
  const auto figures = Statistics("same");
  EXPECT_EQ(figures.inference_count, 3u) << "a batch counts each entry";
  EXPECT_EQ(figures.execution_count, 2u);
}

TEST_F(BuiltinModelsTest, OutputsThatTheClientDidNotAskForAreLeftOut) {
  Add(R"(name: "same" backend: "identity"
         input [{name: "A" data_type: TYPE_INT32 dims: [1]},
                {name: "B" data_type: TYPE_INT32 dims: [1]}]
         output [{name: "A_OUT" data_type: TYPE_INT32 dims: [1]},
                 {name: "B_OUT" data_type: TYPE_INT32 dims: [1]}])");
  EXPECT_EQ(Post("/v2/models/same/infer",
                 R"({"inputs":[{"name":"A","shape":[1],"datatype":"INT32","data":[1]},)"
                 R"({"name":"B","shape":[1],"datatype":"INT32","data":[2]}],)"
                 R"("outputs":[{"name":"B_OUT"}]})")
                .body,
            R"({"model_name":"same","model_version":"1","outputs":[{"name":"B_OUT",)"
            R"("datatype":"INT32","shape":[1],"data":[2]}]})");
}

TEST_F(BuiltinModelsTest, AnAnswerThatIsLongInComingEndsWithItsClient) {
  Add(R"(name: "slow" backend: "identity"
         input [{name: "IN" data_type: TYPE_INT32 dims: [1]}]
         output [{name: "OUT" data_type: TYPE_INT32 dims: [1]}]
         parameters [{key: "execute_delay_ms" value: {string_value: "86400000"}}])");
  {
    HttpClient client = Client();
    ASSERT_TRUE(client.Connect().ok());
    const std::string body = R"({"IN":1})";
    ASSERT_TRUE(client
                    .WriteRaw(fmt::format("POST /v2/models/slow/generate HTTP/1.1\r\nHost: "
                                          "localhost\r\nContent-Length: {}\r\n\r\n{}",
                                          body.size(), body))
                    .ok());
    EXPECT_TRUE(Eventually([&] { return Statistics("slow").pending == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return Statistics("slow").pending == 0; }));
  EXPECT_EQ(Statistics("slow").failures[static_cast<size_t>(FailureReason::kCanceled)], 1u);
}

TEST_F(BuiltinModelsTest, TensorsThatAModelCannotHaveAreRefused) {
  const auto refusal = [](const std::string& text) {
    const Result<InferModelPtr> model = Make("name: \"m\" " + text);
    return model.ok() ? std::string() : model.status().message();
  };
  EXPECT_THAT(refusal(R"(backend: "onnxruntime")"), HasSubstr("backend \"onnxruntime\""));
  EXPECT_THAT(refusal(R"(backend: "identity")"), HasSubstr("as many outputs as inputs"));
  EXPECT_THAT(refusal(R"(backend: "identity"
                         input [{name: "A" data_type: TYPE_INT32 dims: [1]}]
                         output [{name: "B" data_type: TYPE_INT64 dims: [1]}])"),
              HasSubstr("the data type of its input A"));
  EXPECT_THAT(refusal(R"(backend: "add_sub"
                         input [{name: "INPUT0" data_type: TYPE_STRING dims: [1]},
                                {name: "INPUT1" data_type: TYPE_STRING dims: [1]}]
                         output [{name: "OUTPUT0" data_type: TYPE_STRING dims: [1]},
                                 {name: "OUTPUT1" data_type: TYPE_STRING dims: [1]}])"),
              HasSubstr("data type of numbers"));
  EXPECT_THAT(refusal(R"(backend: "repeat" max_batch_size: 1)"), HasSubstr("max_batch_size"));
  EXPECT_THAT(refusal(R"(backend: "mock_llm"
                         input [{name: "PROMPT" data_type: TYPE_STRING dims: [1]}])"),
              HasSubstr("STREAM"));
  // As it comes in a request to load a model.
  inference::ModelConfig config;
  config.set_backend("identity");
  config.add_input()->set_name("A");
  config.add_output()->set_name("B");
  EXPECT_THAT(MakeBuiltinModel(config).status().message(), HasSubstr("data_type"));
}

// ---- mock_llm ----

class MockLlmTest : public BuiltinModelsTest {
 protected:
  MockLlmTest() {
    Add(R"(name: "mock_llm" backend: "mock_llm" max_batch_size: 0
           model_transaction_policy {decoupled: True}
           input [{name: "PROMPT" data_type: TYPE_STRING dims: [1, 1]},
                  {name: "STREAM" data_type: TYPE_BOOL dims: [1, 1]}]
           output [{name: "TEXT" data_type: TYPE_STRING dims: [1, -1]}])");
  }

  const std::string event_ =
      R"({"TEXT":"hello world","model_name":"mock_llm","model_version":"1"})";
};

TEST_F(MockLlmTest, GenerateGivesTheText) {
  const ClientResponse response = Generate(R"({"PROMPT":"hello world","STREAM":false})");
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(std::string(response.Header("content-type")), HasSubstr("application/json"));
  EXPECT_EQ(response.body, event_);
}

TEST_F(MockLlmTest, AStreamHasAnEventForEachResponse) {
  EXPECT_THAT(Stream(R"({"PROMPT":["hello world"],"STREAM":true,"REPETITION":3})"),
              ElementsAre(event_, event_, event_));
  EXPECT_THAT(Stream(R"({"PROMPT":["hello world"],"STREAM":true,"parameters":{"REPETITION":3}})"),
              ElementsAre(event_, event_, event_));
}

TEST_F(MockLlmTest, EventsComeWhenTheirTimeHasCome) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Stream(R"({"PROMPT":"a","STREAM":true,"REPETITION":3,"DELAY":0.03})").size(), 3u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(90));
}

TEST_F(MockLlmTest, AnEventIsSentBeforeTheNextIsDue) {
  HttpClient client = Client();
  // The rest of the repetitions takes longer than any test.
  const std::string body = R"({"PROMPT":"a","STREAM":true,"REPETITION":100000,"DELAY":0.05})";
  ASSERT_EQ(client.OpenStream("/v2/models/mock_llm/generate_stream", body)->status, 200);
  EXPECT_TRUE(client.NextEvent()->has_value());
  EXPECT_TRUE(client.NextEvent()->has_value());
  client.Close();
  EXPECT_TRUE(Eventually([&] { return Statistics("mock_llm").pending == 0; }));
  EXPECT_EQ(Statistics("mock_llm").failures[static_cast<size_t>(FailureReason::kCanceled)], 1u);
}

TEST_F(MockLlmTest, MissingInputsAreCounted) {
  for (const char* body : {"{}", R"({"abc":123})", ""}) {
    ExpectRefused(body, "expected 2 inputs but got 0");
  }
  for (const char* body :
       {R"({"PROMPT":"hello"})", R"({"STREAM":false})", R"({"STREAM":false,"other":"param"})"}) {
    ExpectRefused(body, "expected 2 inputs but got 1");
  }
}

TEST_F(MockLlmTest, TypesAreCheckedInTheOrderOfTheBody) {
  const std::string no_bool = "attempt to access JSON non-boolean as boolean";
  const std::string no_string = "attempt to access JSON non-string as string";
  ExpectRefused(R"({"PROMPT":123,"STREAM":false})", no_string);
  ExpectRefused(R"({"PROMPT":"hello","STREAM":"false"})", no_bool);
  ExpectRefused(R"({"PROMPT":true,"STREAM":123})", no_string);
  ExpectRefused(R"({"STREAM":123,"PROMPT":true})", no_bool);
  ExpectRefused(R"({"PROMPT":{"USER":"hello","BOT":"hi"},"STREAM":true})", no_string);
  ExpectRefused(R"({"PROMPT":"hello","STREAM":true,"PARAMS":{"PARAM_0":0,"PARAM_1":true}})",
                "parameter 'PARAMS' has invalid type");
}

TEST_F(MockLlmTest, AnInputGivenTwiceIsRefused) {
  const std::string prompt = "input 'PROMPT' already exists in request";
  const std::string stream = "input 'STREAM' already exists in request";
  ExpectRefused(R"({"PROMPT":"hello","STREAM":false,"PROMPT":"twice"})", prompt);
  ExpectRefused(R"({"PROMPT":"hello","STREAM":false,"STREAM":false})", stream);
  ExpectRefused(R"({"PROMPT":"hello","STREAM":false,"PROMPT":"twice","STREAM":true})", prompt);
  ExpectRefused(R"({"PROMPT":"hello","STREAM":false,"STREAM":true,"PROMPT":"twice"})", stream);
  ExpectRefused(R"({"PROMPT":"hello","STREAM":false,"parameters":{"PROMPT":"twice"}})", prompt);
}

TEST_F(MockLlmTest, AnErrorAfterAResponseIsAnEvent) {
  const std::string error = R"({"error":"An Error Occurred"})";
  EXPECT_THAT(Stream(R"({"PROMPT":["hello world"],"STREAM":true,"REPETITION":1,"FAIL_LAST":true})"),
              ElementsAre(event_, error));
  const ClientResponse first =
      Post("/v2/models/mock_llm/generate_stream",
           R"({"PROMPT":["hello world"],"STREAM":true,"REPETITION":0,"FAIL_LAST":true})");
  // It has its status, and is an event all the same.
  EXPECT_EQ(first.status, 500);
  EXPECT_EQ(first.Header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(first.body, "data: " + error + "\n\n");
}

TEST_F(MockLlmTest, AnErrorHasTheCodeThatTheRequestNames) {
  const std::string body =
      R"({"PROMPT":"a","STREAM":true,"REPETITION":0,"FAIL_LAST":true,"ERROR_CODE":"UNAVAILABLE"})";
  for (const char* route : {"generate", "generate_stream"}) {
    EXPECT_EQ(Post(fmt::format("/v2/models/mock_llm/{}", route), body).status, 503) << route;
  }
  ExpectRefused(R"({"PROMPT":"a","STREAM":true,"ERROR_CODE":"BROKEN"})", "ERROR_CODE");
}

TEST_F(MockLlmTest, GenerateWantsExactlyOneResponse) {
  const std::string words = "generate expects model to produce exactly 1 response";
  for (const int repetition : {0, 2}) {
    const std::string body =
        fmt::format(R"({{"PROMPT":"hello world","STREAM":true,"REPETITION":{}}})", repetition);
    EXPECT_EQ(Stream(body).size(), static_cast<size_t>(repetition));
    const ClientResponse response = Generate(body);
    EXPECT_EQ(response.status, 500);
    EXPECT_THAT(response.body, HasSubstr(words));
  }
  // The final response without outputs does not count.
  for (const char* stream : {"true", "false"}) {
    const std::string body = fmt::format(R"({{"PROMPT":"hello world","STREAM":{}}})", stream);
    EXPECT_THAT(Stream(body), ElementsAre(event_));
    EXPECT_EQ(Generate(body).body, event_);
  }
}

TEST_F(MockLlmTest, ATextWithoutElementsIsAnEmptyList) {
  EXPECT_EQ(Generate(R"({"PROMPT":"a","STREAM":false,"OUTPUT_0_DIM":true})").body,
            R"({"TEXT":[],"model_name":"mock_llm","model_version":"1"})");
}

TEST_F(MockLlmTest, ParametersOfAnotherTypeAreRefused) {
  ExpectRefused(R"({"PROMPT":"a","STREAM":true,"REPETITION":"x"})", "REPETITION");
  ExpectRefused(R"({"PROMPT":"a","STREAM":true,"DELAY":true})", "DELAY");
  ExpectRefused(R"({"PROMPT":"a","STREAM":true,"DELAY":1e300})", "DELAY");
  ExpectRefused(R"({"PROMPT":"a","STREAM":true,"FAIL_LAST":1})", "FAIL_LAST");
}

TEST_F(MockLlmTest, ManyClientsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, is_streamed = i % 2 == 0] {
      const ClientResponse response =
          Post("/v2/models/mock_llm/generate_stream",
               fmt::format(R"({{"PROMPT":"hello","STREAM":{},"REPETITION":3,"param":"x"}})",
                           is_streamed));
      if (response.status == 200) ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 16);
}

TEST_F(BuiltinModelsTest, AMockThatIsNotDecoupledJoinsItsRepetitions) {
  Add(R"(name: "mock_llm" backend: "mock_llm"
         input [{name: "PROMPT" data_type: TYPE_STRING dims: [1, 1]},
                {name: "STREAM" data_type: TYPE_BOOL dims: [1, 1]}]
         output [{name: "TEXT" data_type: TYPE_STRING dims: [1, -1]}])");
  EXPECT_EQ(Generate(R"({"PROMPT":"a","STREAM":false,"REPETITION":3})").body,
            R"({"TEXT":["a","a","a"],"model_name":"mock_llm","model_version":"1"})");
  EXPECT_THAT(Generate(R"({"PROMPT":"a","STREAM":true})").body,
              HasSubstr("STREAM only supported in decoupled mode"));
  EXPECT_THAT(Generate(R"({"PROMPT":"a","STREAM":false,"REPETITION":1000000000})").body,
              HasSubstr("REPETITION"));
}

}  // namespace
}  // namespace tandem::serve::kserve
