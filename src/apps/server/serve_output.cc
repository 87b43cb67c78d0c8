#include "apps/server/serve_output.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::apps {
namespace {

struct Example {
  const char* path;
  const char* body;
};

Example ExampleFor(Clients clients) {
  switch (clients) {
    case Clients::kLlgtrt:
      return {"/v1/chat/completions",
              R"({"messages": [{"role": "user", "content": "What does \"tandem\" mean?"}], )"
              R"("max_tokens": 100})"};
    case Clients::kLmi:
      return {"/invocations",
              R"({"inputs": "What does \"tandem\" mean?", "parameters": {"max_new_tokens": 100}})"};
    case Clients::kTriton:
      break;
  }
  return {"/v2/models/ensemble/generate",
          R"({"text_input": "What does \"tandem\" mean?", "max_tokens": 100, "bad_words": "", )"
          R"("stop_words": ""})"};
}

}  // namespace

void SayDevice(const ops::Backend& backend, const Console& console) {
  const std::string description = backend.Describe();
  console.Say(fmt::format("backend: {}", description));
  const Device device = backend.device();
  const std::string prefix = fmt::format("cuda {} ", device.index);
  if (device.kind == Device::Kind::kCpu || !description.starts_with(prefix)) return;
  console.Say(fmt::format("Collecting metrics for GPU {}: {}", device.index,
                          description.substr(prefix.size())));
}

void SayMemory(const ServedEngine& engine, const Console& console) {
  const Session& session = *engine.session;
  console.Say(fmt::format("memory of {}:", session.target.name));
  if (!session.ranks_why.empty()) console.Say("  " + session.ranks_why);
  const bool on_host = session.backend->device().kind == Device::Kind::kCpu;
  int64_t total = 0, ranks = 1;
  for (const MemoryLine& line : session.engine->memory_plan()) {
    console.Say(ShowMemoryLine(line));
    if (on_host || !line.pinned) total += line.bytes * line.ranks;  // one kind of memory
    ranks = std::max(ranks, line.ranks);
  }
  console.Say(fmt::format("  {:34} {:>10}",
                          ranks == 1 ? "total" : fmt::format("total of {} ranks", ranks),
                          FormatBytes(total)));
  const bool has_replicas = session.engine->size() > 1;
  console.Say(fmt::format("  at most {} sequences wait for a turn{} (--max_queue_size)",
                          session.engine->options().max_queue_size,
                          has_replicas ? " at each replica" : ""));
  if (!has_replicas) return;
  console.Say(fmt::format("{} replicas (--data_parallel_size):", session.engine->size()));
  for (size_t i = 0; i < session.replicas.size(); ++i) {
    console.Say(fmt::format("  {}: {}", i, session.replicas[i].backends.front()->Describe()));
  }
}

void SayModels(const serve::kserve::Repository& models, Clients clients, const Console& console) {
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
  if (models.Models().empty()) {
    console.Say(clients == Clients::kLmi
                    ? "no model is loaded: POST /models?url=FOLDER&model_name=NAME loads one"
                    : "no model is loaded: POST /v2/repository/models/NAME/load loads one, "
                      "--load_model at start");
  }
}

void SayAddress(const serve::ServerOptions& options, const ServedModels& served,
                const serve::Server& server, Clients clients, const Console& console) {
  // An IPv6 address is written in brackets.
  const bool bracketed = options.http.host.find(':') != std::string::npos;
  const std::string host = bracketed ? "[" + options.http.host + "]" : options.http.host;
  const std::string url =
      fmt::format("{}://{}:{}", options.http.tls.is_set() ? "https" : "http", host, server.port());
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
    const Example example = ExampleFor(clients);
    console.Say(fmt::format("  curl{} {}{} -H 'content-type: application/json' -d '{}'", key, url,
                            example.path, example.body));
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

}  // namespace tandem::apps
