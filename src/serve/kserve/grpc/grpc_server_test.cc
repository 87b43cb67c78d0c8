// The gRPC server itself: limits, keys, TLS, health, the models that it describes and loads, its
// end.
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
#include "base/testing/source_dir.h"
#include "serve/kserve/grpc/testing/grpc_fixture.h"
#include "serve/testing/shared_object.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class GrpcServerTest : public GrpcFixture {};

TEST_F(GrpcServerTest, MessagesAndStreamsAreBounded) {
  options_.message_bytes = 1 << 20;
  options_.streams = 1;
  Serve();
  inference::ModelInferRequest large = InferMessage("one", "", 1);
  large.set_id(std::string(2 << 20, 'x'));
  EXPECT_EQ(Infer(large).error_code(), ::grpc::RESOURCE_EXHAUSTED);
  const auto first = Open();
  first->Write(InferMessage("many", "1", 1));
  EXPECT_THAT(Read(*first, 1), ElementsAre("1:0"));
  ::grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(client_->ModelStreamInfer(&context)->Finish().error_code(), ::grpc::RESOURCE_EXHAUSTED);
}

TEST_F(GrpcServerTest, ConnectionsAreBounded) {
  options_.connections = 1;
  Serve();
  ASSERT_TRUE(Infer(InferMessage("one", "", 1)).ok());
  EXPECT_EQ(server_->open_connections(), 1);
  const std::unique_ptr<Client> first = std::move(client_);
  std::shared_ptr<::grpc::Channel> first_channel = std::move(channel_);
  client_ = Connect(::grpc::InsecureChannelCredentials());
  EXPECT_EQ(Infer(InferMessage("one", "", 1)).error_code(), ::grpc::UNAVAILABLE);
  ::grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_TRUE(first->ModelInfer(&context, InferMessage("one", "", 1), &answer_).ok());
}

TEST_F(GrpcServerTest, ClosedConnectionsMakeRoom) {
  options_.connections = 1;
  Serve();
  for (int i = 0; i < 3; ++i) {
    client_ = Connect(::grpc::InsecureChannelCredentials());  // and the one before is gone
    ::grpc::ClientContext context;
    SetDeadline(context);
    context.set_wait_for_ready(true);
    EXPECT_TRUE(client_->ModelInfer(&context, InferMessage("one", "", 1), &answer_).ok()) << i;
    client_.reset();
    channel_.reset();
  }
}

TEST_F(GrpcServerTest, ConnectionsThatTheServerEndsMakeRoom) {
  options_.idle_timeout = milliseconds(10);
  Serve();
  ASSERT_TRUE(Infer(InferMessage("one", "", 1)).ok());
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (server_->open_connections() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(server_->open_connections(), 0);
}

TEST_F(GrpcServerTest, DescribesModelsAndServer) {
  Client& client = Serve();
  ASSERT_TRUE(Infer(InferMessage("one", "", 1)).ok());
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
  inference::ModelInferRequest request = InferMessage("one", "a", 0);
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

  EXPECT_EQ(Infer(InferMessage("one", "", 1)).error_code(), ::grpc::UNAUTHENTICATED);
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
  EXPECT_TRUE(client.ModelInfer(&context, InferMessage("one", "", 1), &answer_).ok());
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
  EXPECT_EQ(Infer(InferMessage("one", "", 1)).error_code(), ::grpc::UNAVAILABLE)
      << "no certificate";
  ssl.pem_cert_chain = ssl.pem_root_certs;
  ssl.pem_private_key = ReadTextFile(options_.key_file).value();
  client_ = Connect(::grpc::SslCredentials(ssl));
  const ::grpc::Status status = Infer(InferMessage("one", "", 1));
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
  idle->Write(InferMessage("many", "0", 1));
  EXPECT_THAT(Read(*idle, 1), ElementsAre("0:0"));
  const auto idle_context = std::move(context_);
  const auto stream = Open();
  stream->Write(InferMessage("many", "1", 1, {"hold"}));
  ASSERT_TRUE(world_.AwaitBegun(2));
  server_->Leave();
  std::thread drain([&] { server_->AwaitEnd(); });
  EXPECT_EQ(idle->Finish().error_code(), ::grpc::UNAVAILABLE) << "an idle stream ends at once";
  stream->Write(InferMessage("many", "2", 1));
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
  held->Write(InferMessage("many", "1", 1, {"hold"}));
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
