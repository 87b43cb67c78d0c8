// The gRPC server over models that follow instructions, and a client of the protocol: the base of
// the tests of its calls and of the server itself.
#pragma once

#include <fmt/format.h>
#include <grpc_service.grpc.pb.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <model_config.pb.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/reason.h"
#include "serve/kserve/grpc/grpc_server.h"
#include "serve/kserve/models/builtin_models.h"
#include "serve/kserve/repository.h"

namespace tandem::serve {

using kserve::InferCall;
using kserve::InferRequest;
using kserve::InferResponse;
using kserve::Wake;
using std::chrono::milliseconds;
using std::chrono::seconds;

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

// A request of COUNT responses; `flags` are parameters that are true.
inline inference::ModelInferRequest InferMessage(const std::string& model, const std::string& id,
                                                 int32_t count,
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

// For a model of backend "repeat": each element and the milliseconds before it.
inline inference::ModelInferRequest Repeat(const std::string& id,
                                           const std::vector<int32_t>& elements,
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

inline kserve::InferModelPtr RepeatModel() {
  inference::ModelConfig config;
  config.set_name("repeat_int32");
  config.set_backend("repeat");
  return kserve::MakeBuiltinModel(config).value();
}

// Of model "many": responses of 64 KiB each, more than a connection holds unread.
inline inference::ModelInferRequest LargeResponses(const std::string& id, int32_t count,
                                                   const std::vector<std::string>& flags = {}) {
  inference::ModelInferRequest request = InferMessage("many", id, count, flags);
  (*request.mutable_parameters())["size"].set_int64_param(64 << 10);
  return request;
}

class GrpcFixture : public testing::Test {
 protected:
  GrpcFixture() : models_(clock_) {
    models_.Add(std::make_shared<ScriptedModel>(world_, "one", false));
    models_.Add(std::make_shared<ScriptedModel>(world_, "many", true));
    options_.port = 0;
  }
  ~GrpcFixture() override { world_.Release(); }

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

inline int32_t NumberIn(const inference::ModelInferResponse& response) {
  if (response.raw_output_contents_size() == 0) return -1;
  return static_cast<unsigned char>(response.raw_output_contents(0)[0]);
}

// "7:0 7:1 final", "7: error": what a stream gave until it ended or `count` responses came.
inline std::string Told(const inference::ModelStreamInferResponse& message) {
  const inference::ModelInferResponse& response = message.infer_response();
  if (!message.error_message().empty()) {
    return fmt::format("{}: {}", response.id(), message.error_message());
  }
  const auto final_mark = response.parameters().find("triton_final_response");
  if (final_mark == response.parameters().end()) return "no mark";
  return fmt::format("{}:{}{}", response.id(), NumberIn(response),
                     final_mark->second.bool_param() ? " final" : "");
}
inline std::vector<std::string> Read(Stream& stream, int count = 1000) {
  std::vector<std::string> told;
  inference::ModelStreamInferResponse message;
  while (count-- > 0 && stream.Read(&message)) told.push_back(Told(message));
  return told;
}

}  // namespace tandem::serve
