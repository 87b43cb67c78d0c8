// `tandem serve`: serves models over HTTP. At start it prints the use of memory, the models that
// are ready, the address and commands to try.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/session.h"
#include "apps/text_verbs.h"
#include "apps/tokenizers.h"
#include "apps/version.h"
#include "base/bound_options.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/http/access.h"
#include "serve/kserve/models/engine_models.h"
#include "serve/server/server.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kServer = "Server";

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
           .max = 65535}),
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
           .max = 86400}),
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
struct ServeOptions {
  std::string served_model_name = "tandem";
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

void SayMemory(const Session& session, const Console& console) {
  console.Say("memory:");
  int64_t total = 0;
  for (const MemoryLine& line : session.engine->memory_plan()) {
    console.Say(ShowMemoryLine(line));
    total += line.bytes;
  }
  console.Say(fmt::format("  {:34} {:>10}", "total", FormatBytes(total)));
}

// Every name that a request may give.
void SayModels(const serve::kserve::Repository& models, const Console& console) {
  const std::vector<serve::kserve::ModelEntry> index = models.Index();
  size_t width = 5;
  for (const auto& entry : index) width = std::max(width, entry.name.size());
  const std::string rule = "+" + std::string(width + 2, '-') + "+---------+--------+";
  console.Say(rule);
  console.Say(fmt::format("| {:{}} | Version | Status |", "Model", width));
  console.Say(rule);
  for (const auto& entry : index) {
    console.Say(fmt::format("| {:{}} | {:7} | {:6} |", entry.name, width, entry.version,
                            ModelStateName(entry.state)));
  }
  console.Say(rule);
}

void SayAddress(const serve::ServerOptions& options, const std::string& model,
                const Session& session, uint16_t port, const Console& console) {
  // An IPv6 address is written in brackets.
  const bool bracketed = options.http.host.find(':') != std::string::npos;
  const std::string url = fmt::format("http://{}{}{}:{}", bracketed ? "[" : "", options.http.host,
                                      bracketed ? "]" : "", port);
  console.Say(fmt::format("listening on {}; stop with Ctrl-C or SIGTERM. Try:", url));
  const char* key = options.api_keys.empty() ? "" : " -H \"authorization: Bearer $KEY\"";
  console.Say(fmt::format(
      "  curl{} -X POST {}/v2/models/ensemble/generate -d '{{\"text_input\": \"What does "
      "\\\"tandem\\\" mean?\", \"max_tokens\": 100, \"bad_words\": \"\", \"stop_words\": \"\"}}'",
      key, url));
  nlohmann::ordered_json json = {{"url", url},
                                 {"host", options.http.host},
                                 {"port", port},
                                 {"model", model},
                                 {"target", session.target.name}};
  if (session.draft) json["draft"] = session.draft->name;
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

Status Run(const OptionValues& values, Console& console) {
  const ServeOptions options = ServeRows().Read(values);
  TANDEM_ASSIGN_OR_RETURN(serve::ServerOptions server_options, MakeServerOptions(values, options));
  server_options.on_shutdown = [&](int requests) {
    SayShutdown(server_options, requests, console);
  };
  const auto limit_wait = [&](EngineOptions& engine) {
    engine.max_queue_wait = options.max_queue_wait;
  };
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(values, console, limit_wait));
  TANDEM_ASSIGN_OR_RETURN(TextModel text, OpenTextModel(*session));
  session->engine->Start();
  const auto engine = serve::MakeEngineClient(*session->engine);
  serve::Metrics metrics({.version = Version(), .commit = Commit(), .free_memory = [&session] {
                            return session->backend->FreeBytes();
                          }});
  const serve::ServiceOptions service_options = ServiceRows().Read(values);
  serve::ModelRegistry engines;
  TANDEM_RETURN_IF_ERROR(engines.Add(
      options.served_model_name,
      std::make_shared<serve::GenerateService>(*engine, *text.codec, std::move(text.defaults),
                                               session->clock, service_options, &metrics),
      serve::kserve::TextModelNames()));
  serve::kserve::Repository models(session->clock);
  TANDEM_ASSIGN_OR_RETURN(const serve::ModelPtr model, engines.Default());
  AddEngineModels(models, model, session->engine->options().max_batch_size);
  TANDEM_ASSIGN_OR_RETURN(const auto server,
                          serve::Server::Start(server_options, engines, models, metrics));
  console.Say(fmt::format("backend: {}", session->backend->Describe()));
  SayMemory(*session, console);
  SayModels(models, console);
  SayAddress(server_options, options.served_model_name, *session, server->port(), console);
  TANDEM_RETURN_IF_ERROR(console.status());  // nobody would know the address
  return server->Run();
}

}  // namespace

Command ServeCommand() {
  return {.name = "serve",
          .summary =
              "Serve a target and its draft over HTTP: Triton's generate extension and the "
              "OpenAI API",
          .examples =
              "  tandem serve                          # the embedded pair on 127.0.0.1:8000\n"
              "  tandem serve MODEL DRAFT --port 8080\n"
              "  tandem serve MODEL --host 0.0.0.0 --api_key_file keys.txt\n",
          .options = SessionOptionRows(
              Join({ServerRows().specs(), ServeRows().specs(), ServiceRows().specs()})),
          .run = Run};
}

}  // namespace tandem::apps
