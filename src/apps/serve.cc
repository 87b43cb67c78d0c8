// `tandem serve`: models in, an HTTP server out. At start it says where the memory went, which
// models are ready, where it listens and what to type next.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "apps/session.h"
#include "apps/text_verbs.h"
#include "apps/tokenizers.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/http/access.h"
#include "serve/server.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kServer = "Server";

constexpr OptionSpec kOptions[] = {
    {.name = "host",
     .default_value = "127.0.0.1",
     .meaning = "Address to listen on; a public one needs --api_key_file or --insecure",
     .group = kServer},
    {.name = "port",
     .type = OptionType::kInt,
     .default_value = "8000",
     .meaning = "Port; 0: a free one, which is printed",
     .group = kServer,
     .min = 0,
     .max = 65535},
    {.name = "http_threads",
     .type = OptionType::kInt,
     .default_value = "2",
     .meaning = "Threads that serve connections",
     .group = kServer,
     .min = 1,
     .max = 256},
    {.name = "served_model_name",
     .default_value = "tandem",
     .meaning = "The model's name in /v1/models",
     .group = kServer},
    {.name = "api_key",
     .meaning =
         "Clients must send it as a bearer token; every user of this machine can read it here",
     .group = kServer},
    {.name = "api_key_file",
     .meaning = "File with such keys, one a line; # begins a comment line",
     .group = kServer},
    {.name = "allowed_hosts",
     .meaning =
         "Comma-separated host names that clients may use for this server beside "
         "localhost; \"*\": any. A server without a key on a loopback address refuses others",
     .group = kServer},
    {.name = "insecure",
     .type = OptionType::kFlag,
     .meaning = "Listen on a public address without a key",
     .group = kServer},
    {.name = "max_connections",
     .type = OptionType::kInt,
     .default_value = "4096",
     .meaning = "Connections at a time; one more gets 503",
     .group = kServer,
     .min = 1,
     .max = 1 << 20},
    {.name = "max_queue_wait",
     .type = OptionType::kFloat,
     .default_value = "60",
     .meaning = "Seconds a request may wait for its turn before it is refused (429) after all; "
                "0: for ever",
     .group = kServer,
     .min = 0,
     .max = 86400},
    {.name = "shutdown_timeout",
     .type = OptionType::kFloat,
     .default_value = "25",
     .meaning = "Seconds that running requests get after SIGTERM",
     .group = kServer,
     .min = 0,
     .max = 86400},
    {.name = "drain_grace",
     .type = OptionType::kFloat,
     .default_value = "0",
     .meaning =
         "Seconds after SIGTERM in which new requests are still taken (behind a balancer: 5)",
     .group = kServer,
     .min = 0,
     .max = 3600},
};

Nanos SecondsOption(const OptionValues& options, std::string_view name) {
  return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(options.Float(name)));
}

Result<std::vector<std::string>> ReadKeys(const OptionValues& options) {
  std::vector<std::string> keys;
  if (options.IsSet("api_key")) keys.push_back(options.Text("api_key"));
  if (!options.IsSet("api_key_file")) return keys;
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.Text("api_key_file")));
  Result<std::vector<std::string>> from_file = serve::ParseKeys(text);
  if (!from_file.ok()) {
    return InvalidArgument(fmt::format("--api_key_file: {}: {}", options.Text("api_key_file"),
                                       from_file.status().message()));
  }
  keys.insert(keys.end(), from_file->begin(), from_file->end());
  return keys;
}

std::vector<std::string> AllowedHosts(const OptionValues& options) {
  std::vector<std::string> hosts;
  std::string_view list = options.Text("allowed_hosts");
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (end > 0) hosts.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return hosts;
}

Result<serve::ServerOptions> MakeServerOptions(const OptionValues& options) {
  serve::ServerOptions server;
  server.http.host = options.Text("host");
  server.http.port = static_cast<uint16_t>(options.Int("port"));
  server.http.threads = static_cast<int>(options.Int("http_threads"));
  server.http.limits.connections = static_cast<int>(options.Int("max_connections"));
  TANDEM_ASSIGN_OR_RETURN(server.api_keys, ReadKeys(options));
  server.allowed_hosts = AllowedHosts(options);
  server.insecure = options.Flag("insecure");
  server.served_model_name = options.Text("served_model_name");
  server.drain_grace = SecondsOption(options, "drain_grace");
  server.shutdown_timeout = SecondsOption(options, "shutdown_timeout");
  // Refused before any model is loaded.
  if (server.api_keys.empty() && !server.insecure && !serve::IsLoopback(server.http.host)) {
    return FailedPrecondition("--host: " + server.http.host +
                              " can be reached by others: give --api_key_file (or --api_key), or "
                              "--insecure if that is meant");
  }
  return server;
}

void SayMemory(const Session& session, const Console& console) {
  console.Say("memory:");
  int64_t total = 0;
  for (const MemoryLine& line : session.engine->memory_plan()) {
    console.Say(fmt::format("  {:34} {:>10}  {}", line.what, FormatBytes(line.bytes),
                            line.option.empty() ? "" : "--" + line.option));
    total += line.bytes;
  }
  console.Say(fmt::format("  {:34} {:>10}", "total", FormatBytes(total)));
}

void SayModels(const Session& session, const Console& console) {
  struct Row {
    std::string model;
    std::string what;
  };
  const std::string pair =
      session.draft ? session.target.name + " + " + session.draft->name : session.target.name;
  const std::vector<Row> rows = {{"ensemble", pair}, {"tensorrt_llm_bls", pair}};
  size_t width = 5;
  for (const Row& row : rows) width = std::max(width, row.model.size());
  const std::string rule = "+" + std::string(width + 2, '-') + "+---------+--------+";
  console.Say(rule);
  console.Say(fmt::format("| {:{}} | Version | Status |", "Model", width));
  console.Say(rule);
  for (const Row& row : rows) {
    console.Say(fmt::format("| {:{}} | 1       | READY  |   {}", row.model, width, row.what));
  }
  console.Say(rule);
}

void SayAddress(const serve::ServerOptions& options, uint16_t port, const Console& console) {
  const std::string url = fmt::format("http://{}:{}", options.http.host, port);
  console.Say(fmt::format("listening on {}; stop with Ctrl-C or SIGTERM. Try:", url));
  const char* key = options.api_keys.empty() ? "" : " -H \"authorization: Bearer $KEY\"";
  console.Say(fmt::format(
      "  curl{} -X POST {}/v2/models/ensemble/generate -d '{{\"text_input\": \"What does "
      "\\\"tandem\\\" mean?\", \"max_tokens\": 100, \"bad_words\": \"\", \"stop_words\": \"\"}}'",
      key, url));
}

Status Run(const OptionValues& options, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const serve::ServerOptions server_options, MakeServerOptions(options));
  const auto limit_wait = [&](EngineOptions& engine) {
    engine.max_queue_wait = SecondsOption(options, "max_queue_wait");
  };
  TANDEM_ASSIGN_OR_RETURN(const auto session, OpenSession(options, console, limit_wait));
  TANDEM_ASSIGN_OR_RETURN(TextModel text, OpenTextModel(options, *session));
  session->engine->Start();
  const auto engine = serve::MakeEngineClient(*session->engine);
  serve::Metrics metrics([&session] { return session->backend->FreeBytes(); });
  serve::GenerateService service(*engine, *text.codec, std::move(text.defaults), session->clock, {},
                                 &metrics);
  TANDEM_ASSIGN_OR_RETURN(const auto server,
                          serve::Server::Start(server_options, service, metrics));
  console.Say(fmt::format("backend: {}", session->backend->Describe()));
  SayMemory(*session, console);
  SayModels(*session, console);
  SayAddress(server_options, server->port(), console);
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
          .positionals = SessionPositionals(),
          .options = Join({SessionOptionRows(), kOptions}),
          .run = Run};
}

}  // namespace tandem::apps
