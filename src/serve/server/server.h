// Server: the face of the models: OpenAI's, KServe's and djl-serving's routes over HTTP, KServe
// over gRPC, health, metrics, keys, and an orderly shutdown. Owned by main(); Start and Run on one
// thread, Shutdown on any.
//
//   auto client = MakeEngineClient(*engine);  // the engine is Start()ed
//   auto codec = LoadTextCodec(model_dir, vocab_size);
//   auto defaults = LoadGenerationDefaults(model_dir);
//   Metrics metrics;
//   auto service = std::make_shared<GenerateService>(*client, **codec, *defaults, clock,
//                                                    ServiceOptions(), &metrics);
//   ModelRegistry engines;
//   engines.Add("tandem", service, kserve::TextModelNames());
//   kserve::Repository models(clock);
//   kserve::AddEngineModels(models, *engines.Find("tandem"), max_batch_size);
//   auto server = Server::Start(options, engines, models, metrics);
//   Status end = (*server)->Run();  // until SIGTERM or SIGINT
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "serve/gpu_usage.h"
#include "serve/http/http_server.h"
#include "serve/http/listen.h"
#include "serve/http/router.h"
#include "serve/kserve/grpc/grpc_server.h"
#include "serve/kserve/repository.h"
#include "serve/lmi/model_loader.h"
#include "serve/lmi/settings.h"
#include "serve/metrics.h"
#include "serve/model_registry.h"
#include "serve/openai/answers/answer_format.h"

namespace tandem::serve {

struct ServerOptions {
  HttpServerOptions http;             // host, port, threads, limits
  std::vector<std::string> api_keys;  // any of them opens every route; health needs none
  bool insecure = false;              // listen on a public address without a key
  // The inference protocol over gRPC too; its host, keys and `insecure` are those above.
  std::optional<GrpcServerOptions> grpc;
  std::optional<uint16_t> metrics_port;  // /metrics on a port of its own too; 0: a free one
  // Host names under which clients may address the server, in addition to localhost; "*": any. When
  // empty, only a server without keys on a loopback address checks them.
  std::vector<std::string> allowed_hosts;
  // Web pages of these origins may use the server (Cors); none: no page of another origin.
  std::vector<std::string> cors_origins;
  openai::AnswerFormatNames answer_formats;
  lmi::Settings lmi;  // djl-serving's routes
  // Loads models for them by request, and outlives the server; null: nobody does.
  lmi::ModelLoader* lmi_loader = nullptr;
  // The GPUs' figures for /metrics, called once for each answer on the thread that gives it. May be
  // empty: there are none.
  std::function<std::vector<GpuUsage>()> read_gpus;
  std::string version = "unknown";  // of the program, for /version
  size_t openai_body_bytes = 16 << 20;
  size_t kserve_body_bytes = 64 << 20;
  // SIGTERM: not ready at once; requests are still taken for `drain_grace` (a balancer needs time
  // to notice) and then refused; running ones get `shutdown_timeout` to end.
  Nanos drain_grace{0};
  Nanos shutdown_timeout = std::chrono::seconds(25);
  // Called by Run() at the first signal with the number of requests that run then. May be empty.
  std::function<void(int requests)> on_shutdown;
};

// INVALID_ARGUMENT for a public address without key or `insecure`, for an empty key, and for files
// that TLS cannot be served with (TlsContext). For programs that load models first; Start checks it
// too.
Status CheckServerOptions(const ServerOptions& options);

class Server {
 public:
  // Binds and serves `engines` by OpenAI's protocol, `models` by the inference protocol, and
  // `metrics`, all of which outlive the server; from then on Run() handles
  // SIGTERM and SIGINT, and with TLS over HTTP SIGHUP: it reads the certificate and its key again.
  // Errors are those of CheckServerOptions, and UNAVAILABLE "Port 8000 is in use; try --port 8001."
  static Result<std::unique_ptr<Server>> Start(const ServerOptions& options, ModelRegistry& engines,
                                               kserve::Repository& models, Metrics& metrics);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  uint16_t grpc_port() const;     // 0 without it
  uint16_t metrics_port() const;  // 0 without it
  int active_requests() const;    // also those that run without their client (x-synchronous: false)
  // Every route over HTTP, on any of the ports.
  std::vector<const Route*> Routes() const;

  // Serves until SIGTERM, SIGINT or Shutdown(), then drains. Ok even if requests were cut off at
  // `shutdown_timeout`; CANCELLED when a second signal cut them off.
  Status Run();
  // Has the effect of a signal.
  void Shutdown();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
