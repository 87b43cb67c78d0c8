// GrpcServer: the inference protocol over gRPC, with the standard health check. It only translates
// between messages and the repository; no thread waits for a request. Owned by whoever starts it;
// Start, Leave and the destructor on one thread, the rest on any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "serve/kserve/repository.h"

namespace tandem::serve {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";     // an address of this machine, or "localhost"
  uint16_t port = 8001;               // 0: a free one
  int threads = 2;                    // that take responses from the models
  std::vector<std::string> api_keys;  // any of them opens every RPC; health needs none
  bool insecure = false;              // listen on a public address without a key

  // TLS: files in PEM. With a client CA only clients with a certificate that it signed get in.
  std::filesystem::path certificate_file;
  std::filesystem::path key_file;
  std::filesystem::path client_ca_file;

  int64_t message_bytes = 64 << 20;  // RESOURCE_EXHAUSTED
  // Of all connections; beyond it gRPC reads more slowly and at last refuses.
  int64_t memory_bytes = int64_t{1} << 30;
  int connections = 4096;             // further ones are closed at once
  int streams_per_connection = 1024;  // RPCs at a time; further ones wait
  int streams = 4096;                 // ModelStreamInfer at a time: RESOURCE_EXHAUSTED

  Nanos handshake_timeout = std::chrono::seconds(10);  // of TLS and HTTP/2
  // The server asks a silent connection whether it is alive, and ends it without an answer.
  Nanos keepalive_time = std::chrono::hours(2);
  Nanos keepalive_timeout = std::chrono::seconds(20);
  // A client that asks more often, without requests, is sent away.
  Nanos least_client_ping_interval = std::chrono::minutes(5);
  Nanos idle_timeout{0};        // a connection without RPCs is closed; 0: never
  Nanos longest_connection{0};  // then the client has to connect again; 0: no limit
};

class GrpcServer {
 public:
  // Binds and serves `models`, which outlives the server. UNAVAILABLE when the port is taken, with
  // one to try; INVALID_ARGUMENT for a public address without a key or `insecure`, and for
  // incomplete TLS.
  static Result<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                   kserve::Repository& models);
  // Cancels what still runs.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  uint16_t port() const;
  // Inference requests that have not ended.
  int active_requests() const;
  int open_streams() const;
  int open_connections() const;

  // Refuses new requests and connections, and ends idle streams. Running requests go on, and a
  // stream ends after its last one.
  void Leave();
  // After Leave: waits until every call has ended and its responses are written. The server does
  // not serve afterwards.
  void AwaitEnd();
  // After Leave: cancels every call, so that AwaitEnd returns.
  void Cut();

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
