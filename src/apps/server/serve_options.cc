#include "apps/server/serve_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "apps/cli/command.h"
#include "apps/cli/legacy_options.h"
#include "apps/llgtrt/options.h"
#include "apps/lmi/serving.h"
#include "apps/models/grammar_options.h"
#include "apps/models/session.h"
#include "apps/server/triton_options.h"
#include "apps/server/vllm_options.h"
#include "base/file.h"
#include "serve/http/access.h"
#include "serve/http/cors.h"
#include "serve/http/tls.h"

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

// The names of formats, as words and as values.
template <typename Formats>
std::vector<std::pair<std::string_view, std::string>> FormatChoices(const Formats& formats) {
  std::vector<std::pair<std::string_view, std::string>> choices = {{"auto", "auto"},
                                                                   {"none", "none"}};
  for (const auto& format : formats) choices.emplace_back(format.name, format.name);
  return choices;
}

// vLLM's name of a format too, where it differs.
std::vector<std::pair<std::string_view, std::string>> ToolFormatChoices() {
  auto choices = FormatChoices(serve::openai::ToolFormats());
  choices.emplace_back("llama3_json", "llama3");
  return choices;
}

const BoundOptions<serve::ServerOptions>& ServerRows() {
  using serve::ServerOptions;
  static const BoundOptions<ServerOptions> rows({
      Sets<[](ServerOptions& o) -> auto& { return o.http.host; }>(
          {.name = "host",
           .meaning = "Address to listen on; a public one needs --api_key_file or --insecure",
           .group = kServer,
           .alias = "http_address|-H"}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.port; }>(
          {.name = "port",
           .meaning = "Port; 0: any free port, which is printed",
           .group = kServer,
           .min = 0,
           .max = 65535,
           .alias = "http_port|-p"}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.threads; }>(
          {.name = "http_threads",
           .meaning = "Threads that serve connections",
           .group = kServer,
           .min = 1,
           .max = 256,
           .alias = "http_thread_count"}),
      {{.name = "http_max_input_size",
        .type = OptionType::kBytes,
        .default_value = "64MiB",
        .meaning = "Most bytes of the body of a request by the inference protocol over HTTP",
        .group = kServer,
        .min = 1,
        .max = int64_t{1} << 40},
       [](const OptionValues& values, const OptionSpec& spec, ServerOptions& options) {
         options.kserve_body_bytes = static_cast<size_t>(values.Int(spec));
         size_t& all = options.http.limits.all_body_bytes;
         all = std::max(all, options.kserve_body_bytes);  // one such body at least
       }},
      Sets<&ServerOptions::insecure>({.name = "insecure",
                                      .meaning = "Listen on a public address without a key",
                                      .group = kServer}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.limits.connections; }>(
          {.name = "max_connections",
           .meaning = "Most connections at a time; further ones get 503",
           .group = kServer,
           .min = 1,
           .max = 1 << 20}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.limits.keep_alive_interval; }>(
          {.name = "sse_keep_alive",
           .meaning = "Seconds without a byte of a stream after which a comment is sent, so that "
                      "no proxy closes it; 0: never",
           .group = kServer,
           .min = 0,
           .max = 86400}),
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
      Sets<[](ServerOptions& o) -> auto& { return o.http.tls.certificate; }>(
          {.name = "tls_cert_file",
           .meaning = "Certificate (PEM; those that signed it after it) with which every port is "
                      "served over TLS 1.2 or newer; gRPC may have its own",
           .group = kServer,
           .alias = "ssl_certfile"}),
      Sets<[](ServerOptions& o) -> auto& { return o.http.tls.key; }>(
          {.name = "tls_key_file",
           .meaning = "Its private key (PEM, without a passphrase)",
           .group = kServer,
           .alias = "ssl_keyfile"}),
      Sets<[](ServerOptions& o) -> auto& { return o.lmi.tgi_compat; }>(
          {.name = "tgi_compat",
           .meaning = "Answers of /invocations and its like are those of "
                      "text-generation-inference: an array, server-sent events, its names",
           .group = kServer}),
      Sets<[](ServerOptions& o) -> auto& { return o.lmi.multi_model; }>(
          {.name = "multi_model",
           .meaning =
               "POST /models loads the model of a folder, an archive or an address, and DELETE "
               "/models/NAME unloads it, as SageMaker's endpoints of many models do",
           .group = kServer}),
      BindChoice<ServerOptions, [](auto& o) -> auto& { return o.answer_formats.tools; }>(
          {.name = "tool_format",
           .meaning = "How answers of chats mark tool calls; auto: as the chat template does",
           .group = kServer,
           .alias = "tool_call_parser"},
          ToolFormatChoices()),
      BindChoice<ServerOptions, [](auto& o) -> auto& { return o.answer_formats.reasoning; }>(
          {.name = "reasoning_format",
           .meaning = "How answers of chats mark reasoning; auto: as the chat template does",
           .group = kServer},
          FormatChoices(serve::openai::ReasoningFormats())),
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
      {{.name = "allow_control_tokens",
        .type = OptionType::kFlag,
        .meaning = "The name of a control token in a chat's messages becomes the token; without "
                   "the option it is text",
        .group = kServer},
       [](const OptionValues& values, const OptionSpec& spec, serve::ServiceOptions& options) {
         options.limits.allow_control_tokens = values.Flag(spec);
       }},
      BindChoice<serve::ServiceOptions, [](auto& o) -> auto& { return o.limits.compact_json; }>(
          {.name = "json_whitespace",
           .meaning = "Blanks between the parts of JSON that a grammar describes: flexible as the "
                      "model writes them, compact none; disable_any_whitespace in response_format "
                      "decides for one request",
           .group = kServer},
          {{"flexible", false}, {"compact", true}}),
  });
  return rows;
}

const BoundOptions<ServeOptions>& ServeRows() {
  static const BoundOptions<ServeOptions> rows({
      BindOption<ServeOptions, &ServeOptions::served_model_name>(
          {.name = "served_model_name",
           .meaning = "The model's name in /v1/models",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::decoupled>(
          {.name = "decoupled",
           .meaning = "Requests to MODEL by the inference protocol may have several responses, so "
                      "they stream; false: they have one, so that `infer` and ModelInfer answer. A "
                      "repository's config.pbtxt say it for its models",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::model_repo>(
          {.name = "model_repo",
           .meaning = "Folder of models with a config.pbtxt each, instead of MODEL and DRAFT",
           .group = kRepository,
           .alias = "model_repository|model_store"}),
      BindChoice<ServeOptions, &ServeOptions::model_control>(
          {.name = "model_control_mode",
           .meaning = "none: every model is loaded at start; explicit: those of --load_model, and "
                      "others on request; poll is refused",
           .group = kRepository},
          {{"none", ModelControl::kNone},
           {"explicit", ModelControl::kExplicit},
           {"poll", ModelControl::kPoll}}),
      BindOption<ServeOptions, &ServeOptions::load_models>(
          {.name = "load_model",
           .meaning = "Models that are loaded at start with --model_control_mode explicit; *: all",
           .group = kRepository}),
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
      BindOption<ServeOptions, &ServeOptions::grpc_use_ssl>(
          {.name = "grpc_use_ssl",
           .meaning = "Serve gRPC over TLS; unless given: where there is a certificate, its own or "
                      "--tls_cert_file",
           .group = kServer}),
      BindOption<ServeOptions, &ServeOptions::grpc_use_ssl_mutual>(
          {.name = "grpc_use_ssl_mutual",
           .meaning = "Serve gRPC over TLS, to clients with a certificate of --grpc_root_cert",
           .group = kServer}),
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
      BindOption<ServeOptions, &ServeOptions::cors_origins>(
          {.name = "cors_origins",
           .meaning = "Origins, separated by commas, whose web pages may use the server from their "
                      "visitors' browsers (https://chat.example); \"*\": any page. Pages send a "
                      "key themselves; cookies are never used",
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

// Where the models come from.
Status CheckModels(const OptionValues& values, const ServeOptions& options) {
  using Rows = std::vector<const OptionSpec*>;
  const auto first_given = [&values](const Rows& rows) -> const OptionSpec* {
    const auto given =
        std::ranges::find_if(rows, [&](const OptionSpec* row) { return values.IsSet(*row); });
    return given == rows.end() ? nullptr : *given;
  };
  const auto& rows = ServeRows();
  if (options.model_repo.empty()) {
    const OptionSpec* given = first_given(
        {&rows.RowOf<&ServeOptions::model_control>(), &rows.RowOf<&ServeOptions::load_models>()});
    if (given == nullptr) return {};
    return InvalidArgument(
        fmt::format("--{}: needs --model_repo, the folder of the models", given->name));
  }
  const auto& models = ModelOptionRows();
  if (const OptionSpec* given = first_given(
          {&models.RowOf<&ModelOptions::target>(), &models.RowOf<&ModelOptions::draft>(),
           &models.RowOf<&ModelOptions::dummy>(), &models.RowOf<&ModelOptions::draft_dummy>(),
           &models.RowOf<&ModelOptions::acceptance>(),
           &rows.RowOf<&ServeOptions::served_model_name>(),
           &rows.RowOf<&ServeOptions::decoupled>()})) {
    return InvalidArgument(
        fmt::format("--{} {}: with --model_repo the models are those of its folder, as their "
                    "config.pbtxt say; leave out one of the two",
                    given->name, values.Given(*given)));
  }
  if (options.model_control == ModelControl::kPoll) {
    return InvalidArgument(
        "--model_control_mode poll: the folder is not watched; use explicit with --load_model '*', "
        "and POST /v2/repository/models/NAME/load when a model has changed");
  }
  if (options.model_control == ModelControl::kNone && !options.load_models.empty()) {
    return InvalidArgument(
        "--load_model: needs --model_control_mode explicit; without it every model is loaded");
  }
  return {};
}

Status CheckGrpcTls(const ServeOptions& options, const serve::TlsFiles& files) {
  const bool is_mutual = options.grpc_use_ssl_mutual;
  if ((is_mutual || options.grpc_use_ssl.value_or(false)) && !files.is_set()) {
    return InvalidArgument(
        "--grpc_use_ssl: needs --grpc_server_cert and --grpc_server_key, or --tls_cert_file and "
        "--tls_key_file");
  }
  if (is_mutual && options.grpc_client_ca.empty()) {
    return InvalidArgument("--grpc_use_ssl_mutual: needs --grpc_root_cert");
  }
  return {};
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

// gRPC's own files, or else those of every port.
serve::TlsFiles GrpcTlsFiles(const ServeOptions& options, const serve::ServerOptions& server) {
  const serve::TlsFiles own{options.grpc_certificate, options.grpc_key};
  return own.is_set() ? own : server.http.tls;
}

// The ports and files of the options: a repository's users expect all three services.
void SetServices(const ServeOptions& options, serve::ServerOptions& server) {
  const bool is_repository = !options.model_repo.empty();
  const int32_t grpc = options.grpc_port < 0 && is_repository ? 8001 : options.grpc_port;
  const int32_t metrics = options.metrics_port < 0 && is_repository ? 8002 : options.metrics_port;
  if (grpc >= 0 && options.allow_grpc) {
    serve::GrpcServerOptions& to = server.grpc.emplace();
    to.port = static_cast<uint16_t>(grpc);
    if (options.grpc_use_ssl_mutual || options.grpc_use_ssl.value_or(true)) {
      const serve::TlsFiles files = GrpcTlsFiles(options, server);
      to.certificate_file = files.certificate;
      to.key_file = files.key;
      to.client_ca_file = options.grpc_client_ca;
    }
  }
  if (metrics >= 0 && options.allow_metrics) {
    server.metrics_port = static_cast<uint16_t>(metrics);
  }
}

}  // namespace

std::vector<OptionSpec> ServeOptionRows() {
  return Join({ServerRows().specs(), ServeRows().specs(), ServiceRows().specs(),
               GrammarRows().specs(), TritonOptionRows(), VllmOptionRows(), LlgtrtOptionRows(),
               LmiOptionRows(), LegacyServeRows()});
}

ServeOptions ServeOptionsFrom(const OptionValues& values) { return ServeRows().Read(values); }

serve::ServiceOptions ServiceOptionsFrom(const OptionValues& values) {
  return ServiceRows().Read(values);
}

Result<serve::ServerOptions> ServerOptionsFrom(const OptionValues& values,
                                               const ServeOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckModels(values, options));
  serve::ServerOptions server = ServerRows().Read(values);
  TANDEM_RETURN_IF_ERROR(CheckGrpcTls(options, GrpcTlsFiles(options, server)));
  TANDEM_RETURN_IF_ERROR(CheckTritonOptions(values, server.http.host));
  TANDEM_RETURN_IF_ERROR(CheckVllmOptions(values));
  TANDEM_ASSIGN_OR_RETURN(server.api_keys, ReadKeys(options));
  Result<std::vector<std::string>> origins = serve::ParseOrigins(options.cors_origins);
  if (!origins.ok()) return origins.status().Annotate("--cors_origins");
  server.cors_origins = *std::move(origins);
  SetServices(options, server);
  TANDEM_RETURN_IF_ERROR(serve::CheckServerOptions(server));
  return server;
}

}  // namespace tandem::apps
