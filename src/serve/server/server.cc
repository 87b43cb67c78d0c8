#include "serve/server/server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "serve/http/access.h"
#include "serve/http/router.h"
#include "serve/http/tls.h"
#include "serve/kserve/http/front_end.h"
#include "serve/kserve/triton_metrics.h"
#include "serve/llgtrt/routes.h"
#include "serve/lmi/front_end.h"
#include "serve/openai/front_end.h"
#include "serve/server/kv_events.h"

namespace tandem::serve {
namespace {

constexpr Nanos kPoll = std::chrono::milliseconds(10);
constexpr Nanos kLastWords =
    std::chrono::seconds(1);  // for the error events of requests that were cut off

enum class Wake : char { kNone, kStop, kReload };

// A pipe that wakes Run(): one byte for each signal. One per process, as signal handlers are.
class SignalPipe {
 public:
  static SignalPipe& Get() {
    static SignalPipe pipe;
    return pipe;
  }

  void Write(Wake wake) const {
    // A full pipe already holds more wake-ups than needed.
    [[maybe_unused]] const ssize_t written = ::write(fds_[1], &wake, 1);
  }
  // The first wake-up within `timeout` (for ever when negative).
  Wake Read(Nanos timeout) const {
    pollfd waiting{fds_[0], POLLIN, 0};
    const auto ms =
        timeout < Nanos(0)
            ? -1
            : static_cast<int>(
                  std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count());
    Wake wake = Wake::kNone;
    const bool has_come = ::poll(&waiting, 1, ms) > 0 && ::read(fds_[0], &wake, 1) == 1;
    return has_come ? wake : Wake::kNone;
  }
  bool ReadStop(Nanos timeout) const { return Read(timeout) == Wake::kStop; }

 private:
  SignalPipe() {
    // As in Asio when the process has no descriptors left.
    if (::pipe2(fds_, O_CLOEXEC | O_NONBLOCK) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe2");
    }
  }
  int fds_[2] = {-1, -1};
};

void OnSignal(int signal) {
  const int error = errno;
  SignalPipe::Get().Write(signal == SIGHUP ? Wake::kReload : Wake::kStop);
  errno = error;
}

// While this lives, SIGTERM and SIGINT wake Run(), or are kept for it, and SIGHUP too if
// `reloads` is set.
class SignalHandlers {
 public:
  explicit SignalHandlers(bool reloads) : reloads_(reloads) {
    SignalPipe::Get();  // made here: a handler must not
    struct sigaction action{};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGTERM, &action, &old_term_);
    ::sigaction(SIGINT, &action, &old_int_);
    if (reloads_) ::sigaction(SIGHUP, &action, &old_hup_);
  }
  ~SignalHandlers() {
    ::sigaction(SIGTERM, &old_term_, nullptr);
    ::sigaction(SIGINT, &old_int_, nullptr);
    if (reloads_) ::sigaction(SIGHUP, &old_hup_, nullptr);
  }
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;

  // A server that stops has nothing to reload.
  void IgnoreReload() const {
    if (reloads_) ::signal(SIGHUP, SIG_IGN);
  }

 private:
  const bool reloads_;
  struct sigaction old_term_{};
  struct sigaction old_int_{};
  struct sigaction old_hup_{};
};

FrontEnd MakeMetricsFrontEnd(const ModelRegistry& engines, const Metrics& metrics,
                             kserve::TritonMetrics& triton_metrics) {
  FrontEnd front_end;
  front_end.name = "metrics";
  front_end.path_prefix = "/metrics";
  front_end.format_error = [](int, std::string_view message) { return std::string(message); };
  front_end.routes = {{"GET", "/metrics", [&engines, &metrics, &triton_metrics](auto&&...) {
                         HttpHead head;
                         head.content_type = "text/plain; version=0.0.4; charset=utf-8";
                         return MakeReply(std::move(head),
                                          metrics.Text(engines.Stats()) + triton_metrics.Text());
                       }}};
  return front_end;
}

FrontEnd MakeHealthFrontEnd(const kserve::Repository& models) {
  FrontEnd front_end;
  front_end.name = "health";
  front_end.path_prefix = "/health";
  front_end.format_error = [](int, std::string_view message) {
    return fmt::format(R"({{"status":"{}"}})", message);
  };
  front_end.routes = {{"GET", "/health",
                       [&models](auto&&...) {
                         const bool is_ready = models.Ready();
                         return MakeReply(is_ready ? 200 : 503, is_ready
                                                                    ? R"({"status":"ok"})"
                                                                    : R"({"status":"not ready"})");
                       },
                       true}};
  return front_end;
}

Status CheckTls(const TlsFiles& files) {
  return files.is_set() ? TlsContext::Load(files).status() : Status();
}

// The host names that the server answers to, if it checks them.
std::optional<std::vector<std::string>> HostsOf(const ServerOptions& options) {
  const bool is_open = options.api_keys.empty() && IsLoopback(options.http.host);
  if (!is_open && options.allowed_hosts.empty()) return std::nullopt;
  std::vector<std::string> hosts = options.allowed_hosts;
  hosts.push_back(options.http.host);
  return hosts;
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& server_options, ModelRegistry& served_engines,
       kserve::Repository& served_models, Metrics& metrics)
      : handlers(server_options.http.tls.is_set()),
        options(server_options),
        engines(served_engines),
        models(served_models),
        triton_metrics(models, engines, options.read_gpus),
        lmi_counters(options.lmi.error_rates, clock),
        router(Access(options.api_keys, HostsOf(options)), Cors(options.cors_origins),
               [this, &metrics](std::string_view front_end, int status) {
                 metrics.CountResponse(front_end, status);
                 if (front_end == lmi::kFrontEndName) lmi_counters.CountResponse(status);
               }),
        metrics_router(Access(options.api_keys, HostsOf(options)), Cors(options.cors_origins), {}) {
    router.Add(kserve::MakeFrontEnd(models, options.kserve_body_bytes));
    router.Add(MakeHealthFrontEnd(models));
    router.Add(MakeMetricsFrontEnd(engines, metrics, triton_metrics));
    router.Add(MakeKvEventsFrontEnd(engines));
    if (options.lmi.enabled) AddLmi(metrics);
    FrontEnd openai_front_end = openai::MakeFrontEnd(engines, options.openai_body_bytes,
                                                     options.version, options.answer_formats);
    for (Route& route : llgtrt::Routes(engines, models)) {
      openai_front_end.routes.push_back(std::move(route));
    }
    router.Add(std::move(openai_front_end));
    metrics_router.Add(MakeMetricsFrontEnd(engines, metrics, triton_metrics));
  }

  void AddLmi(const Metrics& metrics) {
    const lmi::Host host{engines, models, options.lmi_loader};
    for (FrontEnd& front_end : lmi::MakeFrontEnds(
             host, options.lmi, options.answer_formats, lmi_counters, clock,
             [this, &metrics] { return metrics.Text(engines.Stats()) + triton_metrics.Text(); })) {
      router.Add(std::move(front_end));
    }
  }

  int active_requests() const {
    return http->active_requests() + (grpc == nullptr ? 0 : grpc->active_requests()) +
           router.num_detached();
  }

  bool is_busy() const { return active_requests() > 0 || grpc_is_open; }

  // True if everything ended by itself; false if the time was up or a second signal came.
  bool Drain(bool& aborted) {
    handlers.IgnoreReload();
    models.SetLeaving();
    if (options.on_shutdown) options.on_shutdown(active_requests());
    aborted = options.drain_grace > Nanos(0) && SignalPipe::Get().ReadStop(options.drain_grace);
    router.SetDraining();
    num_draining = active_requests();
    LogInfo("shutting down: requests in flight: {}", num_draining);
    const SteadyClock clock;
    const Nanos end = clock.Now() + options.shutdown_timeout;
    if (grpc != nullptr) {
      grpc->Leave();
      grpc_is_open = true;
      grpc_end = std::thread([this] {
        grpc->AwaitEnd();
        grpc_is_open = false;
      });
    }
    while (!aborted && is_busy() && clock.Now() < end) aborted = SignalPipe::Get().ReadStop(kPoll);
    return !is_busy();
  }

  void ReloadTls() const {
    Status status = http->ReloadTls();
    if (status.ok() && metrics_http != nullptr) status = metrics_http->ReloadTls();
    if (status.ok()) {
      LogInfo("the certificate was read again");
    } else {
      LogError("the certificate was not read again: {}", status.message());
    }
  }

  // Ends the requests that still run; each stream of an engine gets an error event.
  void Cut() const {
    engines.Close();
    const SteadyClock clock;
    const Nanos end = clock.Now() + kLastWords;
    while (active_requests() > 0 && clock.Now() < end) std::this_thread::sleep_for(kPoll);
    if (grpc != nullptr) grpc->Cut();
  }

  const SignalHandlers handlers;  // first: no signal is lost between Start and Run
  const ServerOptions options;
  ModelRegistry& engines;
  kserve::Repository& models;
  kserve::TritonMetrics triton_metrics;
  const SteadyClock clock;
  lmi::Counters lmi_counters;
  Router router;
  Router metrics_router;
  // Last: their replies use the members above.
  std::unique_ptr<GrpcServer> grpc;
  std::unique_ptr<HttpServer> metrics_http;
  std::unique_ptr<HttpServer> http;
  std::atomic<bool> grpc_is_open{false};  // while it is drained
  int num_draining = 0;                   // requests when it began to drain
  std::thread grpc_end;                   // from Drain until the end of Run
};

Status CheckServerOptions(const ServerOptions& options) {
  if (!IsLoopback(options.http.host) && options.api_keys.empty() && !options.insecure) {
    return InvalidArgument(fmt::format(
        "--host: {} can be reached from other machines, and there is no API key; give "
        "--api_key_file (or --api_key), or --insecure if that is meant, or listen on 127.0.0.1",
        options.http.host));
  }
  if (std::any_of(options.api_keys.begin(), options.api_keys.end(),
                  [](const std::string& key) { return key.empty(); })) {
    return InvalidArgument("api_keys: a key is empty");
  }
  TANDEM_RETURN_IF_ERROR(CheckTls(options.http.tls));
  if (options.grpc) {
    return CheckTls({options.grpc->certificate_file, options.grpc->key_file});
  }
  return {};
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, ModelRegistry& engines,
                                              kserve::Repository& models, Metrics& metrics) {
  TANDEM_RETURN_IF_ERROR(CheckServerOptions(options));
  auto impl = std::make_unique<Impl>(options, engines, models, metrics);
  HttpServerOptions main_http = options.http;
  if (options.lmi.enabled) main_http.request_id_header = options.lmi.request_id_header;
  TANDEM_ASSIGN_OR_RETURN(impl->http, HttpServer::Start(main_http, impl->router));
  if (options.grpc) {
    GrpcServerOptions grpc = *options.grpc;
    grpc.host = options.http.host;
    grpc.api_keys = options.api_keys;
    grpc.insecure = options.insecure;
    TANDEM_ASSIGN_OR_RETURN(impl->grpc, GrpcServer::Start(grpc, models));
  }
  if (options.metrics_port) {
    HttpServerOptions http = options.http;
    http.port = *options.metrics_port;
    http.threads = 1;
    TANDEM_ASSIGN_OR_RETURN(impl->metrics_http, HttpServer::Start(http, impl->metrics_router));
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const { return impl_->http->port(); }
uint16_t Server::grpc_port() const { return impl_->grpc == nullptr ? 0 : impl_->grpc->port(); }
uint16_t Server::metrics_port() const {
  return impl_->metrics_http == nullptr ? 0 : impl_->metrics_http->port();
}
int Server::active_requests() const { return impl_->active_requests(); }

std::vector<const Route*> Server::Routes() const { return impl_->router.Routes(); }

void Server::Shutdown() { SignalPipe::Get().Write(Wake::kStop); }

Status Server::Run() {
  for (Wake wake = Wake::kNone; wake != Wake::kStop; wake = SignalPipe::Get().Read(Nanos(-1))) {
    if (wake == Wake::kReload) impl_->ReloadTls();
  }
  bool aborted = false;
  const bool drained = impl_->Drain(aborted);
  if (!drained) {
    // What came since then is only told that the server shuts down.
    const int num_cut = std::min(impl_->active_requests(), impl_->num_draining);
    LogWarning("shutting down: {} request{} cut", num_cut, num_cut == 1 ? " is" : "s are");
    impl_->Cut();
  }
  if (impl_->grpc_end.joinable()) impl_->grpc_end.join();
  impl_->http->Stop();
  while (SignalPipe::Get().Read(Nanos(0)) != Wake::kNone) {
  }
  return aborted ? Cancelled("a second signal ended the server") : Status();
}

}  // namespace tandem::serve
