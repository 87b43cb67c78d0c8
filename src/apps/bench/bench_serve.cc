// `tandem bench serve`: load on any server that speaks Triton's generate extension or the OpenAI
// API. A closed loop keeps `concurrency` requests open; an open loop sends at a fixed rate whatever
// the server does. Every request streams, so that the client sees the first token, the gaps and the
// end.
#include <fmt/core.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "apps/bench/bench.h"
#include "apps/bench/percentiles.h"
#include "serve/http/client.h"

namespace tandem::apps {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

double SecondsBetween(SteadyTime from, SteadyTime to) { return InSeconds(to - from); }

// Results of all clients; each adds its own under the lock, once per request.
struct Tally {
  std::mutex mutex;
  std::vector<double> first_token;
  std::vector<double> between_tokens;
  std::vector<double> end_to_end;
  int64_t pieces = 0;
  int64_t errors = 0;
  std::string first_error;
};

struct Job {
  std::string path;
  std::string body;
  serve::HttpHeaders headers;
};

Job MakeJob(const BenchOptions& options, const serve::HttpEndpoint& endpoint) {
  const std::string& prompt = options.prompt;
  const int64_t max_tokens = options.output_len;
  Job job;
  if (options.endpoint == BenchEndpoint::kGenerate) {
    job.path = endpoint.path + "/v2/models/ensemble/generate_stream";
    job.body =
        nlohmann::json{{"text_input", prompt}, {"max_tokens", max_tokens}, {"stream", true}}.dump();
  } else if (options.endpoint == BenchEndpoint::kCompletions) {
    job.path = endpoint.path + "/v1/completions";
    job.body = nlohmann::json{
        {"model", "tandem"},
        {"prompt", prompt},
        {"max_tokens", max_tokens},
        {"stream",
         true}}.dump();
  } else {
    job.path = endpoint.path + "/v1/chat/completions";
    job.body = nlohmann::json{
        {"model", "tandem"},
        {"messages", {{{"role", "user"}, {"content", prompt}}}},
        {"max_tokens", max_tokens},
        {"stream",
         true}}.dump();
  }
  job.headers = {{"content-type", "application/json"}};
  if (!options.api_key.empty()) {
    job.headers.emplace_back("authorization", "Bearer " + options.api_key);
  }
  return job;
}

// One request from `due` on; times count from then, so that an open loop's backlog shows.
Status SendOne(serve::HttpClient& client, const Job& job, SteadyTime due, Tally& tally) {
  TANDEM_ASSIGN_OR_RETURN(const serve::ClientResponse head,
                          client.OpenStream(job.path, job.body, job.headers));
  if (head.status != 200) {
    return Unavailable(fmt::format("status {}: {}", head.status, head.body.substr(0, 200)));
  }
  std::vector<SteadyTime> arrivals;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> event, client.NextEvent());
    if (!event) break;
    if (*event == "[DONE]") continue;
    if (event->starts_with("{\"error\"")) return Unavailable(*event);
    arrivals.push_back(std::chrono::steady_clock::now());
  }
  if (arrivals.empty()) return Unavailable("a stream without an event");
  const std::lock_guard lock(tally.mutex);
  tally.first_token.push_back(SecondsBetween(due, arrivals.front()));
  tally.end_to_end.push_back(SecondsBetween(due, arrivals.back()));
  for (size_t i = 1; i < arrivals.size(); ++i) {
    tally.between_tokens.push_back(SecondsBetween(arrivals[i - 1], arrivals[i]));
  }
  tally.pieces += static_cast<int64_t>(arrivals.size());
  return {};
}

// When each request is due, from the start of the run: zero in a closed loop; in an open one the
// arrivals of a Poisson process.
std::vector<double> DueTimes(size_t count, double rate) {
  std::vector<double> due(count, 0.0);
  if (rate <= 0) return due;
  std::mt19937 random(1);
  std::exponential_distribution<double> gap(rate);
  double at = 0;
  for (double& time : due) time = at += gap(random);
  return due;
}

class LoadGenerator {
 public:
  LoadGenerator(serve::HttpEndpoint endpoint, Job job, std::vector<double> due, bool open_loop)
      : endpoint_(std::move(endpoint)),
        job_(std::move(job)),
        due_(std::move(due)),
        open_loop_(open_loop) {}

  // Duration of the run in seconds.
  double Run(int clients, Tally& tally) {
    start_ = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < clients; ++i) threads.emplace_back([&] { ClientLoop(tally); });
    for (std::thread& thread : threads) thread.join();
    return SecondsBetween(start_, std::chrono::steady_clock::now());
  }

 private:
  void ClientLoop(Tally& tally) {
    serve::HttpClient client(endpoint_.host, endpoint_.port);
    for (size_t i = next_++; i < due_.size(); i = next_++) {
      SteadyTime due = std::chrono::steady_clock::now();
      if (open_loop_) {
        due = start_ + std::chrono::duration_cast<SteadyTime::duration>(
                           std::chrono::duration<double>(due_[i]));
        std::this_thread::sleep_until(due);
      }
      const Status status = SendOne(client, job_, due, tally);
      if (status.ok()) continue;
      client.Close();
      const std::lock_guard lock(tally.mutex);
      if (tally.errors++ == 0) tally.first_error = status.message();
    }
  }

  const serve::HttpEndpoint endpoint_;
  const Job job_;
  const std::vector<double> due_;
  const bool open_loop_;
  SteadyTime start_;
  std::atomic<size_t> next_{0};
};

nlohmann::ordered_json ToJson(const Percentiles& p) {
  return {{"p50_s", p.p50}, {"p90_s", p.p90}, {"p99_s", p.p99}};
}

void Say(const Console& console, const char* what, const Percentiles& p) {
  console.Say(fmt::format("{:16} p50 {:9.2f} ms   p90 {:9.2f} ms   p99 {:9.2f} ms", what,
                          p.p50 * 1e3, p.p90 * 1e3, p.p99 * 1e3));
}

}  // namespace

Status BenchServe(const BenchOptions& options, const OptionValues&, Console& console) {
  const Result<serve::HttpEndpoint> endpoint = serve::ParseUrl(options.url);
  if (!endpoint.ok()) return endpoint.status().Annotate("--url");
  const double rate = options.request_rate;
  const bool open_loop = rate > 0;
  const size_t count = options.num_requests > 0 ? options.num_requests : 100;
  // An open loop must never wait for a client: one for each request, up to a limit.
  const int clients =
      open_loop ? static_cast<int>(std::min<size_t>(count, 1024)) : options.concurrency;
  Tally tally;
  LoadGenerator generator(*endpoint, MakeJob(options, *endpoint), DueTimes(count, rate), open_loop);
  const double seconds = generator.Run(clients, tally);
  const auto served = static_cast<double>(tally.end_to_end.size());
  const Percentiles first = PercentilesOf(tally.first_token);
  const Percentiles between = PercentilesOf(tally.between_tokens);
  const Percentiles end = PercentilesOf(tally.end_to_end);
  console.Say(fmt::format(
      "{} requests in {:.2f} s ({}), {} errors: {:.1f} requests/s, {:.1f} events/s", count, seconds,
      open_loop ? fmt::format("open loop, {:g} a second", rate)
                : fmt::format("closed loop, {} at a time", clients),
      tally.errors, served / seconds, static_cast<double>(tally.pieces) / seconds));
  Say(console, "first token", first);
  Say(console, "between tokens", between);
  Say(console, "end to end", end);
  const nlohmann::ordered_json json = {
      {"requests", count},
      {"errors", tally.errors},
      {"seconds", seconds},
      {"requests_per_s", served / seconds},
      {"events_per_s", static_cast<double>(tally.pieces) / seconds},
      {"first_token", ToJson(first)},
      {"between_tokens", ToJson(between)},
      {"end_to_end", ToJson(end)}};
  console.Result(json);
  if (tally.errors > 0) {
    return Unavailable(fmt::format("{} of {} requests failed; the first: {}", tally.errors, count,
                                   tally.first_error));
  }
  return {};
}

}  // namespace tandem::apps
