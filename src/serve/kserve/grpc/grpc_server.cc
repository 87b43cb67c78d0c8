#include "serve/kserve/grpc/grpc_server.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "serve/grpc/connection_gate.h"
#include "serve/http/access.h"
#include "serve/http/listen.h"
#include "serve/kserve/grpc/infer_calls.h"
#include "serve/kserve/grpc/service.h"

namespace tandem::serve {
namespace {

using Acceptor = ::grpc::experimental::ExternalConnectionAcceptor;
using Credentials = std::shared_ptr<::grpc::ServerCredentials>;

// gRPC's own lines become lines of ours. Most errors are those of one client.
void LogLineOfGrpc(gpr_log_func_args* line) {
  if (line->severity == GPR_LOG_SEVERITY_ERROR) LogDebug("gRPC: {}", line->message);
}
void LogLineOfProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  LogDebug("protobuf: {}", message);
}

Result<Credentials> MakeCredentials(const GrpcServerOptions& options) {
  const bool has_certificate = !options.certificate_file.empty();
  if (has_certificate != !options.key_file.empty()) {
    return InvalidArgument(
        "TLS needs both a certificate and its key: --grpc_server_cert and --grpc_server_key");
  }
  if (!has_certificate) {
    if (!options.client_ca_file.empty()) {
      return InvalidArgument("a CA for clients needs TLS: name a certificate and its key too");
    }
    return ::grpc::InsecureServerCredentials();
  }
  ::grpc::SslServerCredentialsOptions ssl;
  TANDEM_ASSIGN_OR_RETURN(std::string key, ReadTextFile(options.key_file));
  TANDEM_ASSIGN_OR_RETURN(std::string certificate, ReadTextFile(options.certificate_file));
  ssl.pem_key_cert_pairs.push_back({std::move(key), std::move(certificate)});
  if (!options.client_ca_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadTextFile(options.client_ca_file));
    ssl.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return ::grpc::SslServerCredentials(ssl);
}

// As gRPC takes times; 0 stands for none.
int MillisecondsOr(Nanos time, int none) {
  if (time <= Nanos(0)) return none;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 1, std::numeric_limits<int>::max()));
}

void SetLimits(const GrpcServerOptions& options, ::grpc::ServerBuilder& builder) {
  constexpr int kNever = std::numeric_limits<int>::max();
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<int64_t>(options.message_bytes, std::numeric_limits<int>::max())));
  builder.SetMaxSendMessageSize(-1);  // the models bound their responses
  ::grpc::ResourceQuota quota("tandem");
  quota.Resize(static_cast<size_t>(options.memory_bytes));
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             MillisecondsOr(options.handshake_timeout, kNever));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             MillisecondsOr(options.keepalive_time, kNever));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             MillisecondsOr(options.keepalive_timeout, kNever));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             MillisecondsOr(options.least_client_ping_interval, 1));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             MillisecondsOr(options.idle_timeout, kNever));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             MillisecondsOr(options.longest_connection, kNever));
}

}  // namespace

struct GrpcServer::Impl {
  Impl(const GrpcServerOptions& options, kserve::Repository& models)
      : access(options.api_keys, std::nullopt),
        calls(std::make_shared<kserve::InferCalls>(models, options.threads, options.streams)),
        inference(kserve::MakeInferenceService({models, access, calls})),
        health(kserve::MakeHealthService(models)) {}
  ~Impl() {
    if (server != nullptr) {
      gate->Stop();
      server->Shutdown(std::chrono::system_clock::now());
    }
    server.reset();
    connections.reset();
    calls->executor.Stop();
  }

  const Access access;
  const std::shared_ptr<kserve::InferCalls> calls;
  const std::unique_ptr<::grpc::Service> inference;
  const std::unique_ptr<::grpc::Service> health;
  std::unique_ptr<::grpc::Server> server;
  std::unique_ptr<Acceptor> connections;  // how they reach the server
  std::unique_ptr<ConnectionGate> gate;   // its thread uses `connections`
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcServer::~GrpcServer() = default;

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                      kserve::Repository& models) {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(LogLineOfGrpc);
    google::protobuf::SetLogHandler(LogLineOfProtobuf);
  });
  if (!IsLoopback(options.host) && options.api_keys.empty() && !options.insecure) {
    return InvalidArgument(
        fmt::format("{} is a public address: name a file of API keys, or allow access without one",
                    options.host));
  }
  TANDEM_ASSIGN_OR_RETURN(const Credentials credentials, MakeCredentials(options));
  auto impl = std::make_unique<Impl>(options, models);
  TANDEM_ASSIGN_OR_RETURN(impl->gate, ConnectionGate::Open(options.host, options.port));
  ::grpc::ServerBuilder builder;
  SetLimits(options, builder);
  impl->connections = builder.experimental().AddExternalConnectionAcceptor(
      ::grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.RegisterService(impl->inference.get());
  builder.RegisterService(impl->health.get());
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) {
    return InvalidArgument("gRPC cannot start with this certificate and key");
  }
  impl->gate->Start(options.connections, [&acceptor = *impl->connections](int connection) {
    Acceptor::NewConnectionParameters parameters;
    parameters.fd = connection;
    acceptor.HandleNewConnection(&parameters);
  });
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

uint16_t GrpcServer::port() const { return impl_->gate->port(); }
int GrpcServer::active_requests() const { return impl_->calls->active; }
int GrpcServer::open_streams() const { return impl_->calls->open_streams(); }
int GrpcServer::open_connections() const { return impl_->gate->open_connections(); }

void GrpcServer::Leave() {
  impl_->calls->Leave();
  impl_->gate->Stop();
}
void GrpcServer::AwaitEnd() { impl_->server->Shutdown(); }
// Shutdown cannot be made to hurry once it waits. Ends every connection, and the calls with them.
void GrpcServer::Cut() { grpc_server_cancel_all_calls(impl_->server->c_server()); }

}  // namespace tandem::serve
