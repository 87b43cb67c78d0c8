// `tandem serve`: serves models over HTTP. At start it prints the use of memory, the models that
// are ready, the address and commands to try.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/legacy_options.h"
#include "apps/model_repository.h"
#include "apps/served_engine.h"
#include "apps/text_verbs.h"
#include "apps/version.h"
#include "base/bound_options.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "serve/gpu_usage.h"
#include "serve/http/access.h"
#include "serve/kserve/models/engine_models.h"
#include "serve/server/server.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kServer = "Server";
constexpr std::string_view kRepository = "Model repository";

template <auto kField>
BoundOption<serve::ServerOptions> Sets(const OptionSpec& spec) {
  return BindOption<serve::ServerOptions, kField>(spec);
}

// The names between commas.
void SetAllowedHosts(const OptionValues& values, const OptionSpec& spec,
                     serve::ServerOptions& options) {
  std::string_view list = values.Text(spec);
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (end > 0) options.allowed_hosts.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

const BoundOptions<serve::ServerOptions>& ServerRows() {
  using serve::ServerOptions;
  static const BoundOptions<ServerOptions> rows({
      Sets<[](ServerOptions& o) -> auto& { return o.http.host; }>(
          {.name = "host",
           .meaning = "Address to listen on; a public one needs --api_key_file or --insecure",
           .group = kServer}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.port; }>(
          {.name = "port",
           .meaning = "Port; 0: any free port, which is printed",
           .group = kServer,
           .min = 0,
           .max = 65535,
           .alias = "http_port"}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.threads; }>(
          {.name = "http_threads",
           .meaning = "Threads that serve connections",
           .group = kServer,
           .min = 1,
           .max = 256}),
      Sets<&ServerOptions::insecure>({.name = "insecure",
                                      .meaning = "Listen on a public address without a key",
                                      .group = kServer}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.limits.connections; }>(
          {.name = "max_connections",
           .meaning = "Most connections at a time; further ones get 503",
           .group = kServer,
           .min = 1,
           .max = 1 << 20}),
      Sets<&ServerOptions::shutdown_timeout>(
          {.name = "shutdown_timeout",
           .meaning = "Seconds that running requests get after SIGTERM",
           .group = kServer,
           .min = 0,
           .max = 86400,
           .alias = "exit_timeout_secs"}),
      Sets<&ServerOptions::drain_grace>(
          {.name = "drain_grace",
           .meaning = "Seconds after SIGTERM in which new requests are still taken (behind a "
                      "load balancer: 5)",
           .group = kServer,
           .min = 0,
           .max = 3600}),
      {{.name = "allowed_hosts",
        .meaning = "Host names, separated by commas, that clients may use for this server besides "
                   "localhost; \"*\": any. A server without a key on a loopback address refuses "
                   "all others",
        .group = kServer},
       SetAllowedHosts},
  });
  return rows;
}

const BoundOptions<serve::ServiceOptions>& ServiceRows() {
  static const BoundOptions<serve::ServiceOptions> rows({
      BindOption<serve::ServiceOptions, &serve::ServiceOptions::liveness_timeout>(
          {.name = "liveness_timeout",
           .meaning = "Seconds without progress after which the health routes fail; on a CPU each "
                      "layer of a long prompt is progress, on a GPU each step",
           .group = kServer,
           .min = 1,
           .max = 86400}),
  });
  return rows;
}

// What the server's and the engine's options are made of.
enum class ModelControl : uint8_t { kNone, kExplicit };

struct ServeOptions {
  std::string served_model_name = "tandem";
  std::string model_repo;
  ModelControl model_control = ModelControl::kNone;
  std::vector<std::string> load_models;
  bool exit_on_error = true;
  bool strict_readiness = true;
  bool allow_grpc = true;
  bool allow_metrics = true;
  bool allow_shared_memory = false;
  bool allow_gpu_metrics = true;
  int32_t grpc_port = -1;     // none, but with a repository 8001
  int32_t metrics_port = -1;  // none, but with a repository 8002
  std::string grpc_certificate;
  std::string grpc_key;
  std::string grpc_client_ca;
  std::string log_file;
  std::string api_key;
  std::string api_key_file;
  Nanos max_queue_wait = std::chrono::seconds(60);  // an engine without clients sets no limit
};

const BoundOptions<ServeOptions>& ServeRows() {
  static const BoundOptions<ServeOptions> rows({
      BindOption<ServeOptions, &ServeOptions::served_model_name>(
          {.name = "served_model_name",
           .meaning = "The model's name in /v1/models",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::model_repo>(
          {.name = "model_repo",
           .meaning = "Folder of models with a config.pbtxt each, instead of MODEL and DRAFT",
           .group = kRepository,
           .alias = "model_repository"}),
      BindChoice<ServeOptions, &ServeOptions::model_control>(
          {.name = "model_control_mode",
           .meaning = "none: every model is loaded at start; explicit: those of --load_model, and "
                      "others on request",
           .group = kRepository},
          {{"none", ModelControl::kNone}, {"explicit", ModelControl::kExplicit}}),
      {{.name = "load_model",
        .type = OptionType::kTexts,
        .meaning = "Models that are loaded at start when models are loaded on request; *: all",
        .group = kRepository},
       [](const OptionValues& values, const OptionSpec& spec, ServeOptions& options) {
         options.load_models = values.Texts(spec);
       }},
      {{.name = "exit_on_error",
        .type = OptionType::kFlag,
        .default_value = "true",
        .meaning = "A model that cannot be loaded at start ends the server",
        .group = kRepository},
       [](const OptionValues& values, const OptionSpec& spec, ServeOptions& options) {
         options.exit_on_error = values.Flag(spec);
       }},
      {{.name = "strict_readiness",
        .type = OptionType::kFlag,
        .default_value = "true",
        .meaning = "A model that could not be loaded makes the whole server not ready",
        .group = kRepository},
       [](const OptionValues& values, const OptionSpec& spec, ServeOptions& options) {
         options.strict_readiness = values.Flag(spec);
       }},
      BindOption<ServeOptions, &ServeOptions::grpc_port>(
          {.name = "grpc_port",
           .meaning = "Port of the inference protocol over gRPC; 0: any free port, -1: none (with "
                      "--model_repo 8001)",
           .group = kServer,
           .min = -1,
           .max = 65535}),
      BindOption<ServeOptions, &ServeOptions::metrics_port>(
          {.name = "metrics_port",
           .meaning = "Port that serves /metrics alone, besides --port; 0: any free port, -1: none "
                      "(with --model_repo 8002)",
           .group = kServer,
           .min = -1,
           .max = 65535}),
      {{.name = "allow_grpc",
        .type = OptionType::kFlag,
        .default_value = "true",
        .meaning = "Serve gRPC where there is a port for it",
        .group = kServer},
       [](const OptionValues& values, const OptionSpec& spec, ServeOptions& options) {
         options.allow_grpc = values.Flag(spec);
       }},
      {{.name = "allow_metrics",
        .type = OptionType::kFlag,
        .default_value = "true",
        .meaning = "Serve /metrics on its own port where there is one",
        .group = kServer},
       [](const OptionValues& values, const OptionSpec& spec, ServeOptions& options) {
         options.allow_metrics = values.Flag(spec);
       }},
      BindOption<ServeOptions, &ServeOptions::allow_shared_memory>(
          {.name = "allow_shared_memory",
           .meaning = "Clients on this machine may pass tensors in POSIX shared memory; they can "
                      "then read and write every such object that the server may open",
           .group = kServer,
           .alias = "allow_client_shm"}),
      {{.name = "allow_gpu_metrics",
        .type = OptionType::kFlag,
        .default_value = "true",
        .meaning = "Measure the GPUs for /metrics where the driver can",
        .group = kServer},
       [](const OptionValues& values, const OptionSpec& spec, ServeOptions& options) {
         options.allow_gpu_metrics = values.Flag(spec);
       }},
      BindOption<ServeOptions, &ServeOptions::grpc_certificate>(
          {.name = "grpc_server_cert",
           .meaning = "Certificate (PEM) with which gRPC is served over TLS",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::grpc_key>(
          {.name = "grpc_server_key", .meaning = "Its private key (PEM)", .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::grpc_client_ca>(
          {.name = "grpc_root_cert",
           .meaning = "Only gRPC clients with a certificate that this one signed get in (PEM)",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::log_file>(
          {.name = "log_file",
           .meaning = "File to which everything that would be printed is appended",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::api_key>(
          {.name = "api_key",
           .meaning = "Key that clients must send as a bearer token; every user of this machine "
                      "can read it in the list of processes",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::api_key_file>(
          {.name = "api_key_file",
           .meaning = "File of keys, one per line; blank lines and lines that begin with # are "
                      "skipped",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::max_queue_wait>(
          {.name = "max_queue_wait",
           .meaning = "Seconds that a request may wait for its turn before it is refused (429); 0: "
                      "no limit",
           .group = kServer,
           .min = 0,
           .max = 86400}),
  });
  return rows;
}

// As ParseKeys, with the option named in the error.
Result<std::vector<std::string>> NamedKeys(std::string_view text, std::string_view option) {
  Result<std::vector<std::string>> keys = serve::ParseKeys(text);
  if (keys.ok()) return keys;
  return InvalidArgument(fmt::format("{}: {}", option, keys.status().message()));
}

Result<std::vector<std::string>> ReadKeys(const ServeOptions& options) {
  std::vector<std::string> keys;
  if (!options.api_key.empty()) {
    TANDEM_ASSIGN_OR_RETURN(keys, NamedKeys(options.api_key, "--api_key"));
  }
  const std::string& path = options.api_key_file;
  if (path.empty()) return keys;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> from_file,
                          NamedKeys(text, "--api_key_file: " + path));
  keys.insert(keys.end(), from_file.begin(), from_file.end());
  return keys;
}

Result<serve::ServerOptions> MakeServerOptions(const OptionValues& values,
                                               const ServeOptions& options) {
  serve::ServerOptions server = ServerRows().Read(values);
  TANDEM_ASSIGN_OR_RETURN(server.api_keys, ReadKeys(options));
  // Refused before any model is loaded.
  TANDEM_RETURN_IF_ERROR(serve::CheckServerOptions(server));
  return server;
}

// The models and engines of one server.
struct Served {
  explicit Served(const Clock& clock) : models(clock) {}

  std::vector<std::shared_ptr<ServedEngine>> engines;  // opened at start
  serve::ModelRegistry registry;
  std::unique_ptr<ModelRepository> repository;  // null: the models were named one by one
  serve::kserve::Repository models;             // after it: a load that still runs uses it
};

// The backend of the first engine, which may be loaded while the server runs. Any thread.
class FirstBackend {
 public:
  void Offer(const std::shared_ptr<ops::Backend>& backend) {
    const MutexLock lock(mutex_);
    if (backend_ == nullptr) backend_ = backend;
  }
  std::shared_ptr<ops::Backend> Get() const {  // null: there is no engine yet
    const MutexLock lock(mutex_);
    return backend_;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<ops::Backend> backend_ TANDEM_GUARDED_BY(mutex_);
};

void SayMemory(const ServedEngine& engine, const Console& console) {
  console.Say(fmt::format("memory of {}:", engine.session->target.name));
  int64_t total = 0;
  for (const MemoryLine& line : engine.session->engine->memory_plan()) {
    console.Say(ShowMemoryLine(line));
    total += line.bytes;
  }
  console.Say(fmt::format("  {:34} {:>10}", "total", FormatBytes(total)));
  console.Say(fmt::format("  at most {} sequences wait for a turn (--max_queue_size)",
                          engine.session->engine->options().max_queue_size));
}

// Scripts read from a line of this form which GPU is in use.
void SayDevice(const ops::Backend& backend, const Console& console) {
  const std::string description = backend.Describe();
  console.Say(fmt::format("backend: {}", description));
  const Device device = backend.device();
  const std::string prefix = fmt::format("cuda {} ", device.index);
  if (device.kind == Device::Kind::kCpu || !description.starts_with(prefix)) return;
  console.Say(fmt::format("Collecting metrics for GPU {}: {}", device.index,
                          description.substr(prefix.size())));
}

// Every name that a request may give, and the state of the model.
void SayModels(const serve::kserve::Repository& models, const Console& console) {
  struct Row {
    std::string name, version, status;
  };
  std::vector<Row> rows = {{"Model", "Version", "Status"}};
  for (const serve::kserve::ModelEntry& entry : models.Index()) {
    std::string status(ModelStateName(entry.state));
    if (!entry.reason.empty()) status += ": " + entry.reason;
    rows.push_back({entry.name, entry.version.empty() ? "-" : entry.version, std::move(status)});
  }
  size_t name = 0, status = 0;
  for (const Row& row : rows) {
    name = std::max(name, row.name.size());
    status = std::max(status, row.status.size());
  }
  const std::string rule =
      "+" + std::string(name + 2, '-') + "+---------+" + std::string(status + 2, '-') + "+";
  console.Say(rule);
  for (const Row& row : rows) {
    console.Say(
        fmt::format("| {:{}} | {:7} | {:{}} |", row.name, name, row.version, row.status, status));
    if (&row == &rows.front()) console.Say(rule);
  }
  console.Say(rule);
}

void SayAddress(const serve::ServerOptions& options, const Served& served,
                const serve::Server& server, const Console& console) {
  // An IPv6 address is written in brackets.
  const bool bracketed = options.http.host.find(':') != std::string::npos;
  const std::string host = bracketed ? "[" + options.http.host + "]" : options.http.host;
  const std::string url = fmt::format("http://{}:{}", host, server.port());
  if (server.grpc_port() != 0) {
    console.Say(fmt::format("Started GRPCInferenceService at {}:{}", host, server.grpc_port()));
  }
  console.Say(fmt::format("Started HTTPService at {}:{}", host, server.port()));
  if (server.metrics_port() != 0) {
    console.Say(fmt::format("Started Metrics Service at {}:{}", host, server.metrics_port()));
  }
  const bool has_ensemble = served.models.Find("ensemble").ok();
  console.Say(fmt::format("listening on {}; stop with Ctrl-C or SIGTERM{}", url,
                          has_ensemble ? ". Try:" : ""));
  const char* key = options.api_keys.empty() ? "" : " -H \"authorization: Bearer $KEY\"";
  if (has_ensemble) {
    console.Say(fmt::format(
        "  curl{} -X POST {}/v2/models/ensemble/generate -d '{{\"text_input\": \"What does "
        "\\\"tandem\\\" mean?\", \"max_tokens\": 100, \"bad_words\": \"\", \"stop_words\": \"\"}}'",
        key, url));
  }
  nlohmann::ordered_json json = {
      {"url", url}, {"host", options.http.host}, {"port", server.port()}};
  if (server.grpc_port() != 0) json["grpc_port"] = server.grpc_port();
  if (server.metrics_port() != 0) json["metrics_port"] = server.metrics_port();
  if (const auto model = served.registry.Default(); model.ok()) json["model"] = (*model)->name;
  if (!served.engines.empty()) {
    const Session& session = *served.engines.front()->session;
    json["target"] = session.target.name;
    if (session.draft) json["draft"] = session.draft->name;
  }
  console.Result(json);
}

// At the first signal: what the server waits for, and how to end the wait. Nothing if it ends at
// once.
void SayShutdown(const serve::ServerOptions& options, int requests, const Console& console) {
  if (requests == 0 && options.drain_grace == Nanos(0)) return;
  using Seconds = std::chrono::duration<double>;
  const double grace = Seconds(options.drain_grace).count();
  const double most = grace + Seconds(options.shutdown_timeout).count();
  std::string line =
      fmt::format("finishing {} request{}, up to {:g} s", requests, requests == 1 ? "" : "s", most);
  if (grace > 0) line += fmt::format(" (new ones are taken for {:g} s)", grace);
  console.Say(line + "; again to stop at once");
  console.Result(
      nlohmann::ordered_json{{"finishing", {{"requests", requests}, {"seconds_at_most", most}}}});
}

// The ports and files of the options: a repository's users expect all three services.
void SetServices(const ServeOptions& options, serve::ServerOptions& server) {
  const bool is_repository = !options.model_repo.empty();
  const int32_t grpc = options.grpc_port < 0 && is_repository ? 8001 : options.grpc_port;
  const int32_t metrics = options.metrics_port < 0 && is_repository ? 8002 : options.metrics_port;
  if (grpc >= 0 && options.allow_grpc) {
    serve::GrpcServerOptions& to = server.grpc.emplace();
    to.port = static_cast<uint16_t>(grpc);
    to.certificate_file = options.grpc_certificate;
    to.key_file = options.grpc_key;
    to.client_ca_file = options.grpc_client_ca;
  }
  if (metrics >= 0 && options.allow_metrics) {
    server.metrics_port = static_cast<uint16_t>(metrics);
  }
}

// What the server says goes to the file with its log, as readers of the log expect.
Status LogTo(const std::string& file) {
  const bool is_open = file.empty() || (std::freopen(file.c_str(), "a", stderr) != nullptr &&
                                        std::freopen(file.c_str(), "a", stdout) != nullptr);
  if (is_open) return {};
  return InvalidArgument(fmt::format("--log_file: {} cannot be written", file));
}

// One pair under the names that clients know.
Status ServePair(const ServeOptions& options, const ModelRepository::OpenEngine& open,
                 const OptionValues& values, Served& served) {
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<ServedEngine> engine, open(values));
  TANDEM_RETURN_IF_ERROR(served.registry.Add(options.served_model_name, ServiceOf(engine),
                                             serve::kserve::TextModelNames()));
  TANDEM_ASSIGN_OR_RETURN(const serve::ModelPtr model, served.registry.Default());
  AddEngineModels(served.models, model, engine->session->engine->options().max_batch_size);
  return {};
}

Status ServeRepository(const ServeOptions& options, const ModelRepository::OpenEngine& open,
                       const OptionValues& values, Served& served) {
  RepositoryOptions repository;
  repository.folder = options.model_repo;
  repository.is_explicit = options.model_control == ModelControl::kExplicit;
  repository.load_models = options.load_models;
  repository.exit_on_error = options.exit_on_error;
  served.models.SetStrictReadiness(options.strict_readiness);
  served.repository = std::make_unique<ModelRepository>(std::move(repository), values, open,
                                                        served.registry, served.models);
  if (options.model_control == ModelControl::kExplicit) {
    served.models.SetLoader(served.repository.get());
  }
  return served.repository->LoadAll();
}

Status Run(const OptionValues& values, Console& console) {
  NameLegacyOptions(values, LegacyServeRows());
  const ServeOptions options = ServeRows().Read(values);
  TANDEM_RETURN_IF_ERROR(LogTo(options.log_file));
  TANDEM_ASSIGN_OR_RETURN(serve::ServerOptions server_options, MakeServerOptions(values, options));
  SetServices(options, server_options);
  server_options.on_shutdown = [&](int requests) {
    SayShutdown(server_options, requests, console);
  };
  const auto limit_wait = [&](EngineOptions& engine) {
    engine.max_queue_wait = options.max_queue_wait;
  };
  const serve::ServiceOptions service_options = ServiceRows().Read(values);
  const auto shared = std::make_shared<SharedDevice>();
  FirstBackend backend;
  serve::Metrics metrics({.version = Version(),
                          .commit = Commit(),
                          .free_memory = [&backend]() -> std::optional<int64_t> {
                            const auto first = backend.Get();
                            if (first == nullptr) return std::nullopt;
                            return first->FreeBytes();
                          }});
  const auto gpus = options.allow_gpu_metrics ? serve::GpuMeter::Load() : nullptr;
  if (gpus != nullptr) server_options.read_gpus = [&gpus] { return gpus->Read(); };
  const SteadyClock clock;
  Served served(clock);
  if (options.allow_shared_memory) served.models.shared_memory().Allow();
  bool is_starting = true;
  const ModelRepository::OpenEngine open =
      [&](const OptionValues& asked) -> Result<std::shared_ptr<ServedEngine>> {
    TANDEM_ASSIGN_OR_RETURN(
        std::shared_ptr<ServedEngine> engine,
        OpenServedEngine(asked, console, service_options, metrics, limit_wait, shared));
    backend.Offer(engine->session->backend);
    if (is_starting) served.engines.push_back(engine);
    return engine;
  };
  TANDEM_RETURN_IF_ERROR(options.model_repo.empty()
                             ? ServePair(options, open, values, served)
                             : ServeRepository(options, open, values, served));
  is_starting = false;
  TANDEM_ASSIGN_OR_RETURN(const auto server, serve::Server::Start(server_options, served.registry,
                                                                  served.models, metrics));
  if (const auto first = backend.Get(); first != nullptr) SayDevice(*first, console);
  for (const auto& engine : served.engines) SayMemory(*engine, console);
  SayModels(served.models, console);
  SayAddress(server_options, served, *server, console);
  TANDEM_RETURN_IF_ERROR(console.status());  // nobody would know the address
  served.engines.clear();                    // they live as long as they are served
  return server->Run();
}

}  // namespace

Command ServeCommand() {
  return {.name = "serve",
          .summary =
              "Serve a target and its draft, or a model repository: the inference protocol (KServe "
              "v2, as Triton) over HTTP and gRPC, and the OpenAI API",
          .examples =
              "  tandem serve                          # the embedded pair on 127.0.0.1:8000\n"
              "  tandem serve MODEL DRAFT --port 8080 --grpc_port 8001\n"
              "  tandem serve --model_repo REPO        # folders with a config.pbtxt each\n"
              "  tandem serve MODEL --host 0.0.0.0 --api_key_file keys.txt\n",
          .options = SessionOptionRows(Join({ServerRows().specs(), ServeRows().specs(),
                                             ServiceRows().specs(), LegacyServeRows()})),
          .run = Run};
}

}  // namespace tandem::apps
