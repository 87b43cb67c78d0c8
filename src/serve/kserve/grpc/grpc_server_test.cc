// The gRPC server over models that follow instructions, seen by a client of the protocol.
#include "serve/kserve/grpc/grpc_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpc_service.grpc.pb.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <health.grpc.pb.h>
#include <model_config.pb.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/mutex.h"
#include "base/reason.h"
#include "base/testing/source_dir.h"
#include "serve/kserve/models/builtin_models.h"
#include "serve/testing/shared_object.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using kserve::InferCall;
using kserve::InferRequest;
using kserve::InferResponse;
using kserve::Wake;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Client = inference::GRPCInferenceService::Stub;
using Stream =
    ::grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>;

// What the test sees of the models' calls, and how it lets them go on.
struct World {
  Mutex mutex;
  Condition changed;
  bool released TANDEM_GUARDED_BY(mutex) = false;
  std::vector<Wake> wakes TANDEM_GUARDED_BY(mutex);
  int alive TANDEM_GUARDED_BY(mutex) = 0;
  int begun TANDEM_GUARDED_BY(mutex) = 0;
  int taken TANDEM_GUARDED_BY(mutex) = 0;  // responses
  std::string caller TANDEM_GUARDED_BY(mutex);

  // Lets calls with the parameter "hold" go on.
  void Release() {
    std::vector<Wake> wakes_now;
    {
      const MutexLock lock(mutex);
      released = true;
      wakes_now = wakes;
    }
    for (const Wake& wake : wakes_now) wake();
  }
  template <typename Ready>
  bool Await(Ready ready) {
    MutexLock lock(mutex);
    return changed.WaitFor(lock, seconds(60), ready);
  }
  bool AwaitBegun(int count) {
    return Await([&]() TANDEM_REQUIRES(mutex) { return begun >= count; });
  }
  bool AwaitNoneAlive() {
    return Await([&]() TANDEM_REQUIRES(mutex) { return alive == 0; });
  }
};

// Gives COUNT responses that number themselves in OUT, with "size" bytes more. Parameters: "hold"
// (until Release), "fail" (after them), "mark" (the last one is final), "end" (a final one without
// outputs follows).
class ScriptedCall final : public InferCall {
 public:
  ScriptedCall(World& world, const InferRequest& request, const Wake& wake)
      : world_(world), parameters_(request.parameters) {
    count_ = kserve::Integers(*request.Input("COUNT")).front();
    const MutexLock lock(world_.mutex);
    ++world_.alive;
    ++world_.begun;
    world_.wakes.push_back(wake);
    world_.caller = request.caller;
    world_.changed.NotifyAll();
  }
  ~ScriptedCall() override {
    const MutexLock lock(world_.mutex);
    --world_.alive;
    world_.changed.NotifyAll();
  }

  CallNews Next(InferResponse& response, Status& error) override {
    const MutexLock lock(world_.mutex);
    if (Has("hold") && !world_.released) return CallNews::kNone;
    response = {};
    if (given_ < count_) {
      ++world_.taken;
      world_.changed.NotifyAll();
      const auto number = static_cast<int32_t>(given_++);
      response.outputs.push_back(kserve::Int32Tensor("OUT", {1}, std::vector<int32_t>{number}));
      if (const auto size = parameters_.find("size"); size != parameters_.end()) {
        const std::string blob(static_cast<size_t>(std::get<int64_t>(size->second)), 'x');
        response.outputs.push_back(kserve::StringTensor("BLOB", {1}, std::vector{blob}));
      }
      response.is_final = Has("mark") && given_ == count_;
      return CallNews::kEvent;
    }
    if (Has("end") && !std::exchange(ended_, true)) {
      response.is_final = true;
      return CallNews::kEvent;
    }
    if (!Has("fail")) return CallNews::kDone;
    error = ResourceExhausted("the queue is full").WithReason(Reason::kQueueFull);
    return CallNews::kFailed;
  }

 private:
  bool Has(std::string_view name) const { return parameters_.contains(name); }

  World& world_;
  const kserve::Parameters parameters_;
  int64_t count_ = 0;
  int64_t given_ = 0;
  bool ended_ = false;
};

class ScriptedModel final : public kserve::InferModel {
 public:
  ScriptedModel(World& world, const std::string& name, bool decoupled) : world_(world) {
    config_.set_name(name);
    config_.set_backend("scripted");
    config_.mutable_model_transaction_policy()->set_decoupled(decoupled);
    inference::ModelInput& count = *config_.add_input();
    count.set_name("COUNT");
    count.set_data_type(inference::TYPE_INT32);
    count.add_dims(1);
    inference::ModelInput& text = *config_.add_input();
    text.set_name("TEXT");
    text.set_data_type(inference::TYPE_STRING);
    text.add_dims(-1);
    text.set_optional(true);
    inference::ModelOutput& out = *config_.add_output();
    out.set_name("OUT");
    out.set_data_type(inference::TYPE_INT32);
    out.add_dims(1);
  }
  const inference::ModelConfig& config() const override { return config_; }
  std::unique_ptr<InferCall> Infer(InferRequest request, Wake wake) const override {
    return std::make_unique<ScriptedCall>(world_, request, wake);
  }

 private:
  World& world_;
  inference::ModelConfig config_;
};

inference::ModelInferRequest Request(const std::string& model, const std::string& id, int32_t count,
                                     const std::vector<std::string>& flags = {}) {
  inference::ModelInferRequest request;
  request.set_model_name(model);
  request.set_id(id);
  inference::ModelInferRequest::InferInputTensor& input = *request.add_inputs();
  input.set_name("COUNT");
  input.set_datatype("INT32");
  input.add_shape(1);
  input.mutable_contents()->add_int_contents(count);
  for (const std::string& flag : flags) {
    (*request.mutable_parameters())[flag].set_bool_param(true);
  }
  return request;
}

class GrpcServerTest : public testing::Test {
 protected:
  GrpcServerTest() : models_(clock_) {
    models_.Add(std::make_shared<ScriptedModel>(world_, "one", false));
    models_.Add(std::make_shared<ScriptedModel>(world_, "many", true));
    options_.port = 0;
  }
  ~GrpcServerTest() override { world_.Release(); }

  Client& Serve() {
    server_ = GrpcServer::Start(options_, models_).value();
    client_ = Connect(::grpc::InsecureChannelCredentials());
    return *client_;
  }
  std::unique_ptr<Client> Connect(const std::shared_ptr<::grpc::ChannelCredentials>& credentials) {
    ::grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetSslTargetNameOverride("localhost");  // nobody has to look that name up
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);  // also the time to connect
    channel_ = ::grpc::CreateCustomChannel(fmt::format("127.0.0.1:{}", server_->port()),
                                           credentials, arguments);
    return inference::GRPCInferenceService::NewStub(channel_);
  }

  static void SetDeadline(::grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  }
  // A unary call; the response is in `answer_`.
  ::grpc::Status Infer(const inference::ModelInferRequest& request) {
    ::grpc::ClientContext context;
    SetDeadline(context);
    answer_.Clear();
    return client_->ModelInfer(&context, request, &answer_);
  }
  std::unique_ptr<Stream> Open() {
    context_ = std::make_unique<::grpc::ClientContext>();
    SetDeadline(*context_);
    return client_->ModelStreamInfer(context_.get());
  }
  bool AwaitIdle() {
    if (!world_.AwaitNoneAlive()) return false;
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    while (server_->active_requests() > 0 || server_->open_streams() > 0) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  SteadyClock clock_;
  World world_;
  kserve::Repository models_;
  GrpcServerOptions options_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<::grpc::Channel> channel_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<::grpc::ClientContext> context_;
  inference::ModelInferResponse answer_;
};

int32_t NumberIn(const inference::ModelInferResponse& response) {
  if (response.raw_output_contents_size() == 0) return -1;
  return static_cast<unsigned char>(response.raw_output_contents(0)[0]);
}

// "7:0 7:1 final", "7: error": what a stream gave until it ended or `count` responses came.
std::string Told(const inference::ModelStreamInferResponse& message) {
  const inference::ModelInferResponse& response = message.infer_response();
  if (!message.error_message().empty()) {
    return fmt::format("{}: {}", response.id(), message.error_message());
  }
  const auto final_mark = response.parameters().find("triton_final_response");
  if (final_mark == response.parameters().end()) return "no mark";
  return fmt::format("{}:{}{}", response.id(), NumberIn(response),
                     final_mark->second.bool_param() ? " final" : "");
}
std::vector<std::string> Read(Stream& stream, int count = 1000) {
  std::vector<std::string> told;
  inference::ModelStreamInferResponse message;
  while (count-- > 0 && stream.Read(&message)) told.push_back(Told(message));
  return told;
}

TEST_F(GrpcServerTest, OneRequestHasOneRawResponse) {
  Serve();
  ASSERT_TRUE(Infer(Request("one", "7", 1)).ok());
  EXPECT_EQ(answer_.model_name(), "one");
  EXPECT_EQ(answer_.model_version(), "1");
  EXPECT_EQ(answer_.id(), "7");
  ASSERT_EQ(answer_.outputs_size(), 1);
  EXPECT_EQ(answer_.outputs(0).name(), "OUT");
  EXPECT_THAT(answer_.outputs(0).shape(), ElementsAre(1));
  EXPECT_THAT(answer_.raw_output_contents(), ElementsAre(std::string(4, '\0')));
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(GrpcServerTest, ErrorsHaveTheStatusOfTheirCode) {
  Serve();
  const ::grpc::Status decoupled = Infer(Request("many", "", 1));
  EXPECT_EQ(decoupled.error_code(), ::grpc::UNIMPLEMENTED);
  EXPECT_EQ(decoupled.error_message(),
            "ModelInfer RPC doesn't support models with decoupled transaction policy: use "
            "ModelStreamInfer, or serve the model with --decoupled false (in a repository: "
            "decoupled: false in its config.pbtxt)");
  const ::grpc::Status unknown = Infer(Request("../two", "", 1));
  EXPECT_EQ(unknown.error_code(), ::grpc::NOT_FOUND);
  EXPECT_EQ(unknown.error_message(), "Request for unknown model: '../two' is not found");
  const ::grpc::Status full = Infer(Request("one", "", 0, {"fail"}));
  EXPECT_EQ(full.error_code(), ::grpc::UNAVAILABLE);
  EXPECT_THAT(full.error_message(), HasSubstr("Exceeds maximum queue size"));
  EXPECT_EQ(Infer(Request("one", "", 2)).error_code(), ::grpc::INTERNAL);
  EXPECT_EQ(Infer(Request("one", "", 0)).error_code(), ::grpc::INTERNAL);
}

// For a model of backend "repeat": each element and the milliseconds before it.
inference::ModelInferRequest Repeat(const std::string& id, const std::vector<int32_t>& elements,
                                    const std::vector<uint32_t>& delays) {
  inference::ModelInferRequest request;
  request.set_model_name("repeat_int32");
  request.set_id(id);
  const auto add = [&request](const char* name, const char* type, size_t count) {
    inference::ModelInferRequest::InferInputTensor& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype(type);
    input.add_shape(static_cast<int64_t>(count));
    return input.mutable_contents();
  };
  auto* in = add("IN", "INT32", elements.size());
  for (const int32_t element : elements) in->add_int_contents(element);
  auto* delay = add("DELAY", "UINT32", delays.size());
  for (const uint32_t ms : delays) delay->add_uint_contents(ms);
  add("WAIT", "UINT32", 1)->add_uint_contents(0);
  return request;
}

kserve::InferModelPtr RepeatModel() {
  inference::ModelConfig config;
  config.set_name("repeat_int32");
  config.set_backend("repeat");
  return kserve::MakeBuiltinModel(config).value();
}

TEST_F(GrpcServerTest, RepeatHasAResponseForEachElementAndThenAnEmptyFinalOne) {
  models_.Add(RepeatModel());
  Serve();
  const std::unique_ptr<Stream> stream = Open();
  ASSERT_TRUE(stream->Write(Repeat("a", {5, 6, 7}, {2, 0, 1})));
  EXPECT_THAT(Read(*stream, 3), ElementsAre("a:5", "a:6", "a:7"));
  inference::ModelInferRequest marked = Repeat("b", {8}, {0});
  (*marked.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(marked));
  EXPECT_THAT(Read(*stream, 2), ElementsAre("b:8", "b:-1 final"));
  marked = Repeat("c", {}, {});
  (*marked.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(marked));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("c:-1 final"));
  ASSERT_TRUE(stream->Write(Repeat("d", {1, 2}, {0})));
  EXPECT_THAT(Read(*stream, 1), ElementsAre(HasSubstr("expected IN and DELAY shape to match")));
  stream->WritesDone();
  EXPECT_THAT(Read(*stream), IsEmpty());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(AwaitIdle());
  EXPECT_EQ(Infer(Repeat("", {1}, {0})).error_code(), ::grpc::UNIMPLEMENTED);
}

TEST_F(GrpcServerTest, RepeatNumbersItsResponses) {
  models_.Add(RepeatModel());
  Serve();
  const std::unique_ptr<Stream> stream = Open();
  ASSERT_TRUE(stream->Write(Repeat("", {9, 9}, {0, 0})));
  for (const char number : {'\0', '\1'}) {
    inference::ModelStreamInferResponse message;
    ASSERT_TRUE(stream->Read(&message));
    const inference::ModelInferResponse& response = message.infer_response();
    ASSERT_EQ(response.outputs_size(), 2);
    EXPECT_EQ(response.outputs(1).name(), "IDX");
    EXPECT_EQ(response.outputs(1).datatype(), "UINT32");
    EXPECT_EQ(response.raw_output_contents(1), std::string(1, number) + std::string(3, '\0'));
  }
}

TEST_F(GrpcServerTest, ACancelledRepeatWaitsForNoDelay) {
  models_.Add(RepeatModel());
  Serve();
  const std::unique_ptr<Stream> stream = Open();
  ASSERT_TRUE(stream->Write(Repeat("", {1, 2}, {0, 3'600'000})));
  EXPECT_THAT(Read(*stream, 1), ElementsAre(":1"));
  context_->TryCancel();
  EXPECT_TRUE(AwaitIdle());
  EXPECT_EQ(models_.Statistics("repeat_int32")->pending, 0u);
  EXPECT_EQ(models_.Statistics("repeat_int32")->failure.count, 1u);
}

TEST_F(GrpcServerTest, MalformedTensorsAreInvalidArguments) {
  Serve();
  std::vector<inference::ModelInferRequest> malformed;
  malformed.push_back(Request("one", "", 1));
  malformed.back().add_raw_input_contents("abcd");  // and typed contents
  malformed.push_back(Request("one", "", 1));
  malformed.back().mutable_inputs(0)->set_shape(0, -1);
  malformed.push_back(Request("one", "", 1));
  malformed.back().mutable_inputs(0)->set_shape(0, int64_t{1} << 31);
  malformed.push_back(Request("one", "", 1));
  malformed.back().mutable_inputs(0)->set_datatype("INT31");
  malformed.push_back(Request("one", "", 1));
  malformed.back().mutable_inputs(0)->set_name("COUNTS");
  malformed.push_back(Request("one", "", 1));
  malformed.back().mutable_inputs(0)->clear_contents();
  malformed.back().add_raw_input_contents("ab");
  malformed.push_back(Request("one", "", 1));
  malformed.back().clear_inputs();
  for (const inference::ModelInferRequest& request : malformed) {
    EXPECT_EQ(Infer(request).error_code(), ::grpc::INVALID_ARGUMENT) << request.ShortDebugString();
  }
  EXPECT_TRUE(Infer(Request("one", "", 1)).ok());
}

TEST_F(GrpcServerTest, BytesThatAreNoMessageGetAStatus) {
  Serve();
  const ::grpc::Slice slice("\x0a\xff\xff\xff\xff");
  const ::grpc::ByteBuffer bytes(&slice, 1);
  ::grpc::GenericStub generic(channel_);
  const auto finish = [](auto&& start) {
    std::promise<::grpc::Status> done;
    start([&](::grpc::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  };
  ::grpc::ClientContext context;
  SetDeadline(context);
  ::grpc::ByteBuffer answer;
  const ::grpc::Status unary = finish([&](auto end) {
    generic.UnaryCall(&context, "/inference.GRPCInferenceService/ModelInfer", {}, &bytes, &answer,
                      end);
  });
  EXPECT_EQ(unary.error_code(), ::grpc::INVALID_ARGUMENT) << unary.error_message();

  // A stream's client that sends them and waits.
  class Sender final : public ::grpc::ClientBidiReactor<::grpc::ByteBuffer, ::grpc::ByteBuffer> {
   public:
    void OnDone(const ::grpc::Status& status) override { end.set_value(status); }
    std::promise<::grpc::Status> end;
  } sender;
  ::grpc::ClientContext stream_context;
  SetDeadline(stream_context);
  generic.PrepareBidiStreamingCall(&stream_context,
                                   "/inference.GRPCInferenceService/ModelStreamInfer", {}, &sender);
  sender.StartWrite(&bytes);
  sender.StartCall();
  EXPECT_EQ(sender.end.get_future().get().error_code(), ::grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(GrpcServerTest, AStreamMarksTheLastResponse) {
  Serve();
  const auto stream = Open();
  stream->Write(Request("many", "7", 3, {"mark"}));
  EXPECT_THAT(Read(*stream, 3), ElementsAre("7:0", "7:1", "7:2 final"));
  stream->Write(Request("one", "8", 1));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("8:0 final"));
  stream->WritesDone();
  EXPECT_THAT(Read(*stream), IsEmpty());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(GrpcServerTest, AnEmptyFinalResponseComesWhenItIsAskedFor) {
  Serve();
  const std::string ask = "triton_enable_empty_final_response";
  const auto told = [&](const std::vector<std::string>& flags, int count) {
    const auto stream = Open();
    stream->Write(Request("many", "7", count, flags));
    stream->WritesDone();
    std::vector<std::string> lines = Read(*stream);
    EXPECT_TRUE(stream->Finish().ok());
    return lines;
  };
  EXPECT_THAT(told({}, 2), ElementsAre("7:0", "7:1"));
  EXPECT_THAT(told({ask}, 2), ElementsAre("7:0", "7:1", "7:-1 final"));
  EXPECT_THAT(told({ask, "mark"}, 2), ElementsAre("7:0", "7:1 final")) << "it is known already";
  EXPECT_THAT(told({"end"}, 1), ElementsAre("7:0"));
  EXPECT_THAT(told({"end", ask}, 1), ElementsAre("7:0", "7:-1 final"));
  EXPECT_THAT(told({"end"}, 0), ElementsAre("7:-1 final")) << "the only answer of a request";
}

TEST_F(GrpcServerTest, ResponsesOfOneResponseModelsKeepTheOrderOfRequests) {
  Serve();
  const auto stream = Open();
  stream->Write(Request("one", "first", 1, {"hold"}));
  stream->Write(Request("one", "second", 1));
  stream->Write(Request("many", "third", 1));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("third:0")) << "others are not in line";
  world_.Release();
  EXPECT_THAT(Read(*stream, 2), ElementsAre("first:0 final", "second:0 final"));
}

TEST_F(GrpcServerTest, AnErrorInAStreamNamesTheRequestAndTheStreamGoesOn) {
  Serve();
  const auto stream = Open();
  stream->Write(Request("none", "1", 1));
  inference::ModelStreamInferResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.error_message(), "Request for unknown model: 'none' is not found");
  EXPECT_EQ(message.infer_response().id(), "1");
  EXPECT_EQ(message.infer_response().model_name(), "");
  EXPECT_EQ(message.infer_response().parameters_size(), 0);
  stream->Write(Request("many", "2", 1, {"fail"}));
  EXPECT_THAT(Read(*stream, 2),
              ElementsAre("2:0", "2: Exceeds maximum queue size. the queue is full"));
  stream->Write(Request("many", "3", 1));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("3:0"));
}

TEST_F(GrpcServerTest, AClientMayWantErrorsToEndTheStream) {
  Serve();
  context_ = std::make_unique<::grpc::ClientContext>();
  SetDeadline(*context_);
  context_->AddMetadata("triton_grpc_error", "true");
  const auto stream = client_->ModelStreamInfer(context_.get());
  stream->Write(Request("many", "1", 1, {"hold"}));
  stream->Write(Request("none", "2", 1));
  EXPECT_THAT(Read(*stream), IsEmpty());
  EXPECT_EQ(stream->Finish().error_code(), ::grpc::NOT_FOUND);
  EXPECT_TRUE(AwaitIdle()) << "its other requests are cancelled";
}

TEST_F(GrpcServerTest, CancellingAnRpcCancelsItsRequests) {
  Serve();
  const auto stream = Open();
  stream->Write(Request("many", "1", 1, {"hold"}));
  stream->Write(Request("one", "2", 1, {"hold"}));
  ASSERT_TRUE(world_.AwaitBegun(2));
  context_->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), ::grpc::CANCELLED);
  EXPECT_TRUE(AwaitIdle());

  ::grpc::ClientContext unary;
  std::thread canceller([&] {
    world_.AwaitBegun(3);
    unary.TryCancel();
  });
  EXPECT_EQ(client_->ModelInfer(&unary, Request("one", "3", 1, {"hold"}), &answer_).error_code(),
            ::grpc::CANCELLED);
  canceller.join();
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(GrpcServerTest, AClosedHalfLetsRequestsEnd) {
  Serve();
  const auto stream = Open();
  stream->Write(Request("many", "1", 2, {"hold"}));
  stream->WritesDone();
  ASSERT_TRUE(world_.AwaitBegun(1));
  world_.Release();
  EXPECT_THAT(Read(*stream), ElementsAre("1:0", "1:1"));
  EXPECT_TRUE(stream->Finish().ok());
}

inference::ModelInferRequest LargeResponses(const std::string& id, int32_t count,
                                            const std::vector<std::string>& flags = {}) {
  inference::ModelInferRequest request = Request("many", id, count, flags);
  (*request.mutable_parameters())["size"].set_int64_param(64 << 10);
  return request;
}

TEST_F(GrpcServerTest, ASlowReaderMakesTheModelWait) {
  Serve();
  constexpr int kCount = 20'000;
  const auto stream = Open();
  stream->Write(LargeResponses("1", kCount));
  // A second request begins, and is answered, although the first fills all that there is room for.
  stream->Write(Request("many", "2", 1));
  ASSERT_TRUE(world_.AwaitBegun(2));
  inference::ModelStreamInferResponse message;
  int read = 0;
  do {
    ASSERT_TRUE(stream->Read(&message));
    ++read;
  } while (message.infer_response().id() != "2");
  EXPECT_LT(read, kCount);
  const MutexLock lock(world_.mutex);
  // What is on its way is in the buffers of gRPC and of the system.
  EXPECT_LT(world_.taken - read, 1000) << "64 KiB each";
}

TEST_F(GrpcServerTest, RequestsOfAStreamTakeTurnsAtASlowReader) {
  Serve();
  constexpr int kCount = 2000;
  const auto stream = Open();
  stream->Write(LargeResponses("1", kCount, {"hold"}));
  stream->Write(LargeResponses("2", kCount, {"hold"}));
  ASSERT_TRUE(world_.AwaitBegun(2));
  world_.Release();
  inference::ModelStreamInferResponse message;
  std::string next = "1";
  do {
    ASSERT_TRUE(stream->Read(&message));
  } while (message.infer_response().id() == next);
  EXPECT_LT(NumberIn(message.infer_response()), kCount);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(stream->Read(&message));
    EXPECT_EQ(message.infer_response().id(), next) << i;
    next = next == "1" ? "2" : "1";
  }
}

TEST_F(GrpcServerTest, ManyStreamsEachGetTheirOwnResponses) {
  Serve();
  constexpr int kStreams = 16;
  constexpr int kResponses = 50;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] {
      ::grpc::ClientContext context;
      SetDeadline(context);
      const auto stream = client_->ModelStreamInfer(&context);
      const std::string id = std::to_string(i);
      stream->Write(Request("many", id, kResponses, {"mark"}));
      stream->WritesDone();
      inference::ModelStreamInferResponse message;
      int next = 0;
      while (stream->Read(&message)) {
        if (message.infer_response().id() == id && NumberIn(message.infer_response()) == next) {
          ++next;
        }
      }
      if (stream->Finish().ok() && next == kResponses) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kStreams);
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(GrpcServerTest, MessagesAndStreamsAreBounded) {
  options_.message_bytes = 1 << 20;
  options_.streams = 1;
  Serve();
  inference::ModelInferRequest large = Request("one", "", 1);
  large.set_id(std::string(2 << 20, 'x'));
  EXPECT_EQ(Infer(large).error_code(), ::grpc::RESOURCE_EXHAUSTED);
  const auto first = Open();
  first->Write(Request("many", "1", 1));
  EXPECT_THAT(Read(*first, 1), ElementsAre("1:0"));
  ::grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(client_->ModelStreamInfer(&context)->Finish().error_code(), ::grpc::RESOURCE_EXHAUSTED);
}

TEST_F(GrpcServerTest, ConnectionsAreBounded) {
  options_.connections = 1;
  Serve();
  ASSERT_TRUE(Infer(Request("one", "", 1)).ok());
  EXPECT_EQ(server_->open_connections(), 1);
  const std::unique_ptr<Client> first = std::move(client_);
  std::shared_ptr<::grpc::Channel> first_channel = std::move(channel_);
  client_ = Connect(::grpc::InsecureChannelCredentials());
  EXPECT_EQ(Infer(Request("one", "", 1)).error_code(), ::grpc::UNAVAILABLE);
  ::grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_TRUE(first->ModelInfer(&context, Request("one", "", 1), &answer_).ok());
}

TEST_F(GrpcServerTest, ClosedConnectionsMakeRoom) {
  options_.connections = 1;
  Serve();
  for (int i = 0; i < 3; ++i) {
    client_ = Connect(::grpc::InsecureChannelCredentials());  // and the one before is gone
    ::grpc::ClientContext context;
    SetDeadline(context);
    context.set_wait_for_ready(true);
    EXPECT_TRUE(client_->ModelInfer(&context, Request("one", "", 1), &answer_).ok()) << i;
    client_.reset();
    channel_.reset();
  }
}

TEST_F(GrpcServerTest, ConnectionsThatTheServerEndsMakeRoom) {
  options_.idle_timeout = milliseconds(10);
  Serve();
  ASSERT_TRUE(Infer(Request("one", "", 1)).ok());
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (server_->open_connections() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(server_->open_connections(), 0);
}

TEST_F(GrpcServerTest, DescribesModelsAndServer) {
  Client& client = Serve();
  ASSERT_TRUE(Infer(Request("one", "", 1)).ok());
  const auto call = [](auto&& rpc) {
    ::grpc::ClientContext context;
    SetDeadline(context);
    const ::grpc::Status status = rpc(context);
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  inference::ServerMetadataResponse server;
  call([&](auto& context) { return client.ServerMetadata(&context, {}, &server); });
  EXPECT_EQ(server.name(), "triton");
  EXPECT_GT(server.extensions_size(), 3);

  inference::ModelMetadataRequest name;
  name.set_name("one");
  inference::ModelMetadataResponse metadata;
  call([&](auto& context) { return client.ModelMetadata(&context, name, &metadata); });
  EXPECT_EQ(metadata.platform(), "scripted");
  EXPECT_THAT(metadata.versions(), ElementsAre("1"));
  EXPECT_EQ(metadata.inputs(0).datatype(), "INT32");
  EXPECT_EQ(metadata.inputs(1).datatype(), "BYTES");
  EXPECT_THAT(metadata.inputs(1).shape(), ElementsAre(-1));

  inference::ModelConfigRequest config_name;
  config_name.set_name("many");
  inference::ModelConfigResponse config;
  call([&](auto& context) { return client.ModelConfig(&context, config_name, &config); });
  EXPECT_TRUE(config.config().model_transaction_policy().decoupled());

  inference::ModelStatisticsResponse statistics;
  call([&](auto& context) { return client.ModelStatistics(&context, {}, &statistics); });
  ASSERT_EQ(statistics.model_stats_size(), 2);
  EXPECT_EQ(statistics.model_stats(1).name(), "one");
  EXPECT_EQ(statistics.model_stats(1).inference_stats().success().count(), 1u);

  models_.SetState("broken", kserve::ModelState::kUnavailable, "no file");
  inference::RepositoryIndexResponse index;
  call([&](auto& context) { return client.RepositoryIndex(&context, {}, &index); });
  ASSERT_EQ(index.models_size(), 3);
  EXPECT_EQ(index.models(0).reason(), "no file");
  EXPECT_EQ(index.models(2).state(), "READY");

  inference::ModelReadyRequest ready_name;
  ready_name.set_name("broken");
  inference::ModelReadyResponse ready;
  call([&](auto& context) { return client.ModelReady(&context, ready_name, &ready); });
  EXPECT_FALSE(ready.ready());
}

TEST_F(GrpcServerTest, LoadsAndUnloadsThroughTheRepository) {
  class Loader final : public kserve::ModelLoader {
   public:
    Status Load(std::string_view name, std::string_view config) override {
      return name == "good" && config == "{}" ? Status() : NotFound("no such folder");
    }
    Status Unload(std::string_view, bool dependents) override {
      return dependents ? Status() : FailedPrecondition("it has dependents");
    }
  } loader;
  Client& client = Serve();
  const auto load = [&](const std::string& name) {
    inference::RepositoryModelLoadRequest request;
    request.set_model_name(name);
    (*request.mutable_parameters())["config"].set_string_param("{}");
    inference::RepositoryModelLoadResponse response;
    ::grpc::ClientContext context;
    SetDeadline(context);
    return client.RepositoryModelLoad(&context, request, &response);
  };
  EXPECT_EQ(load("good").error_code(), ::grpc::INVALID_ARGUMENT) << "without model control";
  models_.SetLoader(&loader);
  EXPECT_TRUE(load("good").ok());
  EXPECT_EQ(load("bad").error_code(), ::grpc::NOT_FOUND);
  inference::RepositoryModelUnloadRequest request;
  request.set_model_name("good");
  (*request.mutable_parameters())["unload_dependents"].set_bool_param(true);
  inference::RepositoryModelUnloadResponse response;
  ::grpc::ClientContext context;
  EXPECT_TRUE(client.RepositoryModelUnload(&context, request, &response).ok());
  (*request.mutable_parameters())["file:1/x"].set_bytes_param("x");
  ::grpc::ClientContext other;
  EXPECT_THAT(client.RepositoryModelUnload(&other, request, &response).error_message(),
              HasSubstr("'file:1/x'"));
}

TEST_F(GrpcServerTest, SettingsAndSharedMemoryAreAnsweredOrRefusedByName) {
  Client& client = Serve();
  {
    ::grpc::ClientContext context;
    inference::LogSettingsResponse response;
    ASSERT_TRUE(client.LogSettings(&context, {}, &response).ok());
    EXPECT_TRUE(response.settings().at("log_error").bool_param());
    EXPECT_EQ(response.settings().at("log_verbose_level").uint32_param(), 0u);
  }
  {
    ::grpc::ClientContext context;
    inference::TraceSettingRequest request;
    (*request.mutable_settings())["trace_rate"].add_value("1");
    inference::TraceSettingResponse response;
    const ::grpc::Status status = client.TraceSetting(&context, request, &response);
    EXPECT_EQ(status.error_code(), ::grpc::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("trace_rate"));
  }
  {
    ::grpc::ClientContext context;
    inference::TraceSettingRequest request;
    request.set_model_name("nothing");
    inference::TraceSettingResponse response;
    EXPECT_EQ(client.TraceSetting(&context, request, &response).error_code(), ::grpc::NOT_FOUND);
  }
  {
    ::grpc::ClientContext context;
    inference::SystemSharedMemoryStatusResponse response;
    EXPECT_TRUE(client.SystemSharedMemoryStatus(&context, {}, &response).ok());
    EXPECT_TRUE(response.regions().empty());
  }
  {
    ::grpc::ClientContext context;
    inference::SystemSharedMemoryRegisterResponse response;
    const ::grpc::Status status = client.SystemSharedMemoryRegister(&context, {}, &response);
    EXPECT_EQ(status.error_code(), ::grpc::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("--allow_shared_memory"));
  }
  {
    ::grpc::ClientContext context;
    inference::CudaSharedMemoryRegisterResponse response;
    EXPECT_EQ(client.CudaSharedMemoryRegister(&context, {}, &response).error_code(),
              ::grpc::UNIMPLEMENTED);
  }
}

template <typename Tensor>
void SetRange(const std::string& region, int64_t offset, int64_t bytes, Tensor& tensor) {
  (*tensor.mutable_parameters())["shared_memory_region"].set_string_param(region);
  (*tensor.mutable_parameters())["shared_memory_offset"].set_int64_param(offset);
  (*tensor.mutable_parameters())["shared_memory_byte_size"].set_int64_param(bytes);
}

TEST_F(GrpcServerTest, RegionsOfSharedMemoryAreRegisteredListedAndUnregistered) {
  models_.shared_memory().Allow();
  Client& client = Serve();
  const SharedObject object("01234567");
  const auto add = [&](const std::string& name, uint64_t bytes) {
    ::grpc::ClientContext context;
    inference::SystemSharedMemoryRegisterRequest request;
    request.set_name(name);
    request.set_key(object.key());
    request.set_offset(1);
    request.set_byte_size(bytes);
    inference::SystemSharedMemoryRegisterResponse response;
    return client.SystemSharedMemoryRegister(&context, request, &response);
  };
  inference::SystemSharedMemoryStatusResponse regions;
  const auto list = [&](const std::string& name) {
    ::grpc::ClientContext context;
    inference::SystemSharedMemoryStatusRequest request;
    request.set_name(name);
    regions.Clear();
    return client.SystemSharedMemoryStatus(&context, request, &regions);
  };
  const auto remove = [&](const std::string& name) {
    ::grpc::ClientContext context;
    inference::SystemSharedMemoryUnregisterRequest request;
    request.set_name(name);
    inference::SystemSharedMemoryUnregisterResponse response;
    return client.SystemSharedMemoryUnregister(&context, request, &response);
  };
  ASSERT_TRUE(add("a", 7).ok());
  ASSERT_TRUE(add("b", 1).ok());
  EXPECT_EQ(add("a", 7).error_code(), ::grpc::ALREADY_EXISTS);
  EXPECT_EQ(add("c", 8).error_code(), ::grpc::INVALID_ARGUMENT);
  ASSERT_TRUE(list("").ok());
  EXPECT_EQ(regions.regions().size(), 2u);
  ASSERT_TRUE(list("a").ok());
  ASSERT_EQ(regions.regions().size(), 1u);
  EXPECT_EQ(regions.regions().at("a").key(), object.key());
  EXPECT_EQ(regions.regions().at("a").offset(), 1u);
  EXPECT_EQ(regions.regions().at("a").byte_size(), 7u);
  ASSERT_TRUE(remove("a").ok());
  EXPECT_EQ(list("a").error_code(), ::grpc::NOT_FOUND);
  ASSERT_TRUE(remove("").ok());
  ASSERT_TRUE(list("").ok());
  EXPECT_TRUE(regions.regions().empty());
}

TEST_F(GrpcServerTest, TensorsAreReadFromAndWrittenToSharedMemory) {
  models_.shared_memory().Allow();
  Serve();
  const SharedObject object(std::string("\3\0\0\0........", 12));
  ASSERT_TRUE(models_.shared_memory().Register({"r", object.key(), 0, 12}).ok());
  inference::ModelInferRequest request = Request("one", "a", 0);
  request.mutable_inputs(0)->clear_contents();
  SetRange("r", 0, 4, *request.mutable_inputs(0));
  // The count is in memory, and so its three responses are too many for ModelInfer.
  EXPECT_THAT(Infer(request).error_message(), HasSubstr("more than one response"));

  request.set_model_name("many");
  auto& output = *request.add_outputs();
  output.set_name("OUT");
  SetRange("r", 6, 5, output);
  const std::unique_ptr<Stream> stream = Open();
  ASSERT_TRUE(stream->Write(request));
  inference::ModelStreamInferResponse response;
  for (const char number : {'\0', '\1', '\2'}) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.infer_response().outputs(0).name(), "OUT");
    ASSERT_EQ(response.infer_response().raw_output_contents_size(), 1);
    EXPECT_EQ(response.infer_response().raw_output_contents(0), "");
    EXPECT_GE(object.Content()[6], number);
  }
  ASSERT_TRUE(stream->WritesDone());
  while (stream->Read(&response)) {
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(object.Content(), std::string("\3\0\0\0..\2\0\0\0..", 12));

  request.set_model_name("one");
  SetRange("r", 6, 3, *request.mutable_outputs(0));
  ::grpc::Status refused = Infer(request);
  EXPECT_EQ(refused.error_code(), ::grpc::INTERNAL);
  EXPECT_THAT(refused.error_message(), HasSubstr("(3 bytes) should be at least 4 bytes"));
  SetRange("r", 12, 1, *request.mutable_outputs(0));
  refused = Infer(request);
  EXPECT_EQ(refused.error_code(), ::grpc::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "Invalid offset for shared memory region: 'r'");
  object.Resize(2);
  refused = Infer(request);
  EXPECT_EQ(refused.error_code(), ::grpc::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("has become shorter"));
  EXPECT_TRUE(AwaitIdle());
}

TEST_F(GrpcServerTest, HealthNeedsNoKeyAndEverythingElseDoes) {
  options_.api_keys = {"first", "second"};
  Client& client = Serve();
  const auto check = [&](const std::string& service) {
    const auto health = ::grpc::health::v1::Health::NewStub(channel_);
    ::grpc::ClientContext context;
    ::grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    ::grpc::health::v1::HealthCheckResponse response;
    const ::grpc::Status status = health->Check(&context, request, &response);
    return status.ok() ? static_cast<int>(response.status()) : -status.error_code();
  };
  EXPECT_EQ(check(""), ::grpc::health::v1::HealthCheckResponse::SERVING);
  EXPECT_EQ(check("inference.GRPCInferenceService"),
            ::grpc::health::v1::HealthCheckResponse::SERVING);
  EXPECT_EQ(check("other"), -::grpc::NOT_FOUND);
  ::grpc::ClientContext ready_context;
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(client.ServerReady(&ready_context, {}, &ready).ok());
  EXPECT_TRUE(ready.ready());

  EXPECT_EQ(Infer(Request("one", "", 1)).error_code(), ::grpc::UNAUTHENTICATED);
  EXPECT_EQ(Open()->Finish().error_code(), ::grpc::UNAUTHENTICATED);
  ::grpc::ClientContext index_context;
  inference::RepositoryIndexResponse index;
  EXPECT_EQ(client.RepositoryIndex(&index_context, {}, &index).error_code(),
            ::grpc::UNAUTHENTICATED);

  // Before the parameters are judged.
  ::grpc::ClientContext load_context;
  inference::RepositoryModelLoadRequest load;
  (*load.mutable_parameters())["nonsense"].set_bool_param(true);
  inference::RepositoryModelLoadResponse loaded;
  EXPECT_EQ(client.RepositoryModelLoad(&load_context, load, &loaded).error_code(),
            ::grpc::UNAUTHENTICATED);

  ::grpc::ClientContext context;
  context.AddMetadata("authorization", "bearer second");
  EXPECT_TRUE(client.ModelInfer(&context, Request("one", "", 1), &answer_).ok());
  {
    const MutexLock lock(world_.mutex);
    EXPECT_EQ(world_.caller, "key 1");
  }
  models_.SetLeaving();
  EXPECT_EQ(check(""), ::grpc::health::v1::HealthCheckResponse::NOT_SERVING);
}

TEST_F(GrpcServerTest, AModelThatFailedToLoadMakesTheServerNotReady) {
  Serve();
  const auto health = ::grpc::health::v1::Health::NewStub(channel_);
  const auto is_ready = [&] {
    ::grpc::ClientContext ready_context, health_context;
    inference::ServerReadyResponse ready;
    ::grpc::health::v1::HealthCheckResponse state;
    EXPECT_TRUE(client_->ServerReady(&ready_context, {}, &ready).ok());
    EXPECT_TRUE(health->Check(&health_context, {}, &state).ok());
    EXPECT_EQ(state.status() == ::grpc::health::v1::HealthCheckResponse::SERVING, ready.ready());
    return ready.ready();
  };
  EXPECT_TRUE(is_ready());
  models_.SetState("other", kserve::ModelState::kFailed, "no such file");
  EXPECT_FALSE(is_ready());
  models_.SetState("other", kserve::ModelState::kUnavailable, "unloaded");
  EXPECT_TRUE(is_ready());
}

TEST_F(GrpcServerTest, ServesTlsAndChecksClients) {
  const auto folder = SourceDir() / "tests/data/tls";
  options_.certificate_file = folder / "certificate.pem";
  options_.key_file = folder / "key.pem";
  options_.client_ca_file = folder / "certificate.pem";
  options_.host = "localhost";
  Serve();
  ::grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = ReadTextFile(options_.certificate_file).value();
  client_ = Connect(::grpc::SslCredentials(ssl));
  EXPECT_EQ(Infer(Request("one", "", 1)).error_code(), ::grpc::UNAVAILABLE) << "no certificate";
  ssl.pem_cert_chain = ssl.pem_root_certs;
  ssl.pem_private_key = ReadTextFile(options_.key_file).value();
  client_ = Connect(::grpc::SslCredentials(ssl));
  const ::grpc::Status status = Infer(Request("one", "", 1));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(GrpcServerTest, RefusesOptionsThatCannotServe) {
  const auto refusal = [&] {
    auto server = GrpcServer::Start(options_, models_);
    return server.ok() ? Status() : server.status();
  };
  options_.host = "0.0.0.0";
  EXPECT_EQ(refusal().code(), Code::kInvalidArgument);
  options_.insecure = true;
  EXPECT_TRUE(refusal().ok());
  options_.host = "127.0.0.1";
  options_.key_file = "key.pem";
  EXPECT_EQ(refusal().code(), Code::kInvalidArgument);
  options_.key_file.clear();
  options_.client_ca_file = "ca.pem";
  EXPECT_EQ(refusal().code(), Code::kInvalidArgument);
  options_.client_ca_file.clear();
  Serve();
  options_.port = server_->port();
  EXPECT_EQ(refusal().code(), Code::kUnavailable);
  EXPECT_THAT(refusal().message(), HasSubstr("is in use; try --grpc_port"));
}

TEST_F(GrpcServerTest, DrainingLetsRequestsEndAndRefusesNewOnes) {
  Serve();
  const auto idle = Open();
  idle->Write(Request("many", "0", 1));
  EXPECT_THAT(Read(*idle, 1), ElementsAre("0:0"));
  const auto idle_context = std::move(context_);
  const auto stream = Open();
  stream->Write(Request("many", "1", 1, {"hold"}));
  ASSERT_TRUE(world_.AwaitBegun(2));
  server_->Leave();
  std::thread drain([&] { server_->AwaitEnd(); });
  EXPECT_EQ(idle->Finish().error_code(), ::grpc::UNAVAILABLE) << "an idle stream ends at once";
  stream->Write(Request("many", "2", 1));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("2: the server is about to end"));
  world_.Release();
  EXPECT_THAT(Read(*stream), ElementsAre("1:0"));
  EXPECT_EQ(stream->Finish().error_code(), ::grpc::UNAVAILABLE);
  drain.join();
}

TEST_F(GrpcServerTest, CuttingCancelsWhatADrainWaitsFor) {
  Serve();
  const auto held = Open();
  const auto held_context = std::move(context_);
  held->Write(Request("many", "1", 1, {"hold"}));
  const auto unread = Open();
  unread->Write(LargeResponses("2", 1000));
  ASSERT_TRUE(world_.AwaitBegun(2));
  server_->Leave();
  std::thread drain([&] { server_->AwaitEnd(); });
  server_->Cut();
  drain.join();
  // Not the deadline.
  EXPECT_EQ(held->Finish().error_code(), ::grpc::UNAVAILABLE);
  EXPECT_LT(Read(*unread, 2000).size(), 1000u);
  EXPECT_TRUE(world_.AwaitNoneAlive());
}

TEST(ServerOverGrpcTest, ASecondSignalCancelsTheCallsThatNoEngineEnds) {
  ServerOptions options;
  options.shutdown_timeout = std::chrono::hours(1);
  options.grpc.emplace().port = 0;
  TestServer server({}, options);
  server.models.Add(RepeatModel());
  Status end;
  std::thread runner([&] {
    end = server.server->Run();
    server.server.reset();
  });
  const auto client = inference::GRPCInferenceService::NewStub(
      ::grpc::CreateChannel(fmt::format("127.0.0.1:{}", server.server->grpc_port()),
                            ::grpc::InsecureChannelCredentials()));
  ::grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  const auto stream = client->ModelStreamInfer(&context);
  stream->Write(Repeat("1", {7, 8}, {0, 3'600'000}));
  EXPECT_THAT(Read(*stream, 1), ElementsAre("1:7"));
  server.server->Shutdown();
  EXPECT_TRUE(Eventually([&] { return server.Client().Get("/health")->status == 503; }));
  server.server->Shutdown();
  EXPECT_THAT(Read(*stream), IsEmpty());
  EXPECT_EQ(stream->Finish().error_code(), ::grpc::UNAVAILABLE) << "and not its deadline";
  runner.join();
  EXPECT_EQ(end.code(), Code::kCancelled);
}

}  // namespace
}  // namespace tandem::serve
