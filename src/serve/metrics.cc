#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "serve/process_usage.h"

namespace tandem::serve {
namespace {

namespace prom = prometheus;

const prom::Histogram::BucketBoundaries kWaitSeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160};
const prom::Histogram::BucketBoundaries kTokenCounts = {1,   2,   5,    10,   20,   50,   100,
                                                        200, 500, 1000, 2000, 5000, 10000};

prom::Histogram& AddHistogram(prom::Registry& registry, const char* name, const char* help,
                              const prom::Histogram::BucketBoundaries& buckets) {
  return prom::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

prom::MetricFamily Family(const char* name, const char* help, prom::MetricType type, double value) {
  prom::ClientMetric metric;
  (type == prom::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return {name, help, type, {metric}};
}

constexpr auto kGauge = prom::MetricType::Gauge;
constexpr auto kCounter = prom::MetricType::Counter;

// A figure counted by the engines and only reported here.
struct EngineRow {
  const char* name;
  const char* help;
  prom::MetricType type;
  double (*read)(const EngineStats& stats);
};

template <auto Member>
double Read(const EngineStats& stats) {
  return static_cast<double>(stats.*Member);
}
template <auto Member>
double ReadBound(const EngineStats& stats) {
  return static_cast<double>(stats.bounds.*Member);
}
template <auto Member>
double ReadKv(const EngineStats& stats) {
  return static_cast<double>(stats.kv.*Member);
}

constexpr EngineRow kEngineRows[] = {
    {"tandem_requests_running", "Sequences in the running batch.", kGauge,
     Read<&EngineStats::running>},
    {"tandem_requests_waiting", "Sequences in the queue.", kGauge, Read<&EngineStats::waiting>},
    {"tandem_batch_size_bound", "Most sequences of a step, as tuned.", kGauge,
     ReadBound<&StepBounds::sequences>},
    {"tandem_num_tokens_bound", "Most tokens of a step, as tuned.", kGauge,
     ReadBound<&StepBounds::tokens>},
    {"tandem_kv_capacity_blocks", "Total key-value cache blocks.", kGauge,
     ReadKv<&KvCacheStats::total_blocks>},
    {"tandem_engine_steps_total", "Turns of the engine's loop.", kCounter,
     Read<&EngineStats::steps>},
    {"tandem_engine_requests_finished_total", "Requests that the engine ended without an error.",
     kCounter, Read<&EngineStats::requests_finished>},
    {"tandem_engine_requests_failed_total", "Requests that the engine ended with an error.",
     kCounter, Read<&EngineStats::requests_failed>},
    {"tandem_preemptions_total", "Sequences paused for lack of blocks.", kCounter,
     Read<&EngineStats::preemptions>},
    {"tandem_engines_failed", "Models of which an engine has failed until a restart.", kGauge,
     [](const EngineStats& stats) { return stats.failure.ok() ? 0.0 : 1.0; }},
    {"tandem_prompt_tokens_total", "Prompt tokens of admitted requests.", kCounter,
     Read<&EngineStats::prompt_tokens>},
    {"tandem_output_tokens_total", "Tokens generated.", kCounter,
     Read<&EngineStats::output_tokens>},
    {"tandem_prefix_lookup_tokens_total", "Prompt tokens looked up in the prefix cache.", kCounter,
     ReadKv<&KvCacheStats::lookup_tokens>},
    {"tandem_prefix_hit_tokens_total", "Prompt tokens found in the prefix cache.", kCounter,
     ReadKv<&KvCacheStats::hit_tokens>},
    {"tandem_kv_evictions_total", "Cached blocks evicted to make room.", kCounter,
     ReadKv<&KvCacheStats::evictions>},
    {"tandem_kv_host_capacity_blocks", "Blocks of host memory for evicted cache blocks.", kGauge,
     ReadKv<&KvCacheStats::total_host_blocks>},
    {"tandem_kv_host_used_blocks", "Evicted cache blocks kept in host memory.", kGauge,
     ReadKv<&KvCacheStats::used_host_blocks>},
    {"tandem_kv_host_used_bytes", "Bytes of the evicted cache blocks kept in host memory.", kGauge,
     ReadKv<&KvCacheStats::used_host_bytes>},
    {"tandem_kv_offloads_total", "Evicted cache blocks copied to host memory.", kCounter,
     ReadKv<&KvCacheStats::offloads>},
    {"tandem_kv_offloaded_bytes_total", "Bytes copied to host memory.", kCounter,
     ReadKv<&KvCacheStats::offloaded_bytes>},
    {"tandem_kv_onboards_total", "Cache blocks copied back from host memory.", kCounter,
     ReadKv<&KvCacheStats::onboards>},
    {"tandem_kv_onboarded_bytes_total", "Bytes copied back from host memory.", kCounter,
     ReadKv<&KvCacheStats::onboarded_bytes>},
    {"tandem_draft_rounds_total", "Verification passes with drafts.", kCounter,
     Read<&EngineStats::draft_rounds>},
    {"tandem_drafts_proposed_total", "Draft tokens verified.", kCounter,
     Read<&EngineStats::drafts_proposed>},
    {"tandem_drafts_accepted_total", "Draft tokens accepted.", kCounter,
     Read<&EngineStats::drafts_accepted>},
};

double Sum(std::span<const EngineStats> engines, double (*read)(const EngineStats&)) {
  double sum = 0;
  for (const EngineStats& stats : engines) sum += read(stats);
  return sum;
}

prom::MetricFamily KvBlocks(std::span<const EngineStats> engines) {
  prom::MetricFamily family{"tandem_kv_blocks", "Key-value cache blocks by state.", kGauge, {}};
  const auto add = [&](const char* state, double (*read)(const EngineStats&)) {
    prom::ClientMetric metric;
    metric.label = {{"state", state}};
    metric.gauge.value = Sum(engines, read);
    family.metric.push_back(std::move(metric));
  };
  add("cached", ReadKv<&KvCacheStats::cached_blocks>);
  add("free", ReadKv<&KvCacheStats::free_blocks>);
  add("referenced", ReadKv<&KvCacheStats::referenced_blocks>);
  return family;
}

// Of each replica, where there are several; those of one number are summed over the engines.
void AppendReplicas(std::span<const EngineStats> engines, std::vector<prom::MetricFamily>& out) {
  const auto append = [&](const char* name, const char* help, int32_t ReplicaWork::* figure) {
    std::vector<double> sums;
    for (const EngineStats& stats : engines) {
      sums.resize(std::max(sums.size(), stats.replicas.size()));
      for (size_t i = 0; i < stats.replicas.size(); ++i) sums[i] += stats.replicas[i].*figure;
    }
    if (sums.empty()) return;
    prom::MetricFamily family{name, help, kGauge, {}};
    for (size_t i = 0; i < sums.size(); ++i) {
      prom::ClientMetric& metric = family.metric.emplace_back();
      metric.label = {{"replica", std::to_string(i)}};
      metric.gauge.value = sums[i];
    }
    out.push_back(std::move(family));
  };
  append("tandem_replica_requests_running", "Sequences in the running batch of a replica.",
         &ReplicaWork::running);
  append("tandem_replica_requests_waiting", "Sequences in the queue of a replica.",
         &ReplicaWork::waiting);
}

void AppendEngines(std::span<const EngineStats> engines, std::vector<prom::MetricFamily>& out) {
  for (const EngineRow& row : kEngineRows) {
    out.push_back(Family(row.name, row.help, row.type, Sum(engines, row.read)));
  }
  out.push_back(KvBlocks(engines));
  AppendReplicas(engines, out);
  double oldest = 0;
  for (const EngineStats& stats : engines) oldest = std::max(oldest, stats.seconds_since_progress);
  out.push_back(Family("tandem_engine_heartbeat_age_seconds",
                       "Time since the engine last made progress.", kGauge, oldest));
}

// Under the names that every Prometheus client library gives them.
void AppendProcess(std::vector<prom::MetricFamily>& out) {
  const Result<ProcessUsage> usage = ReadProcessUsage();
  if (!usage.ok()) return;
  const auto gauge = [&out](const char* name, const char* help, int64_t value) {
    out.push_back(Family(name, help, kGauge, static_cast<double>(value)));
  };
  out.push_back(Family("process_cpu_seconds_total",
                       "Total user and system CPU time spent in seconds.", kCounter,
                       usage->cpu_seconds));
  out.push_back(Family("process_start_time_seconds",
                       "Start time of the process since unix epoch in seconds.", kGauge,
                       usage->start_time_seconds));
  gauge("process_resident_memory_bytes", "Resident memory size in bytes.", usage->resident_bytes);
  gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", usage->virtual_bytes);
  gauge("process_threads", "Number of OS threads in the process.", usage->threads);
  gauge("process_open_fds", "Number of open file descriptors.", usage->open_fds);
  gauge("process_max_fds", "Maximum number of open file descriptors.", usage->max_fds);
}

}  // namespace

struct Metrics::Impl {
  prom::Registry registry;
  prom::Family<prom::Counter>& responses = prom::BuildCounter()
                                               .Name("tandem_http_responses_total")
                                               .Help("Responses by front end and status.")
                                               .Register(registry);
  prom::Family<prom::Counter>& finished = prom::BuildCounter()
                                              .Name("tandem_choices_finished_total")
                                              .Help("Completed answers by finish reason.")
                                              .Register(registry);
  prom::Family<prom::Counter>& failed = prom::BuildCounter()
                                            .Name("tandem_requests_failed_total")
                                            .Help("Requests that ended with an error, by code.")
                                            .Register(registry);
  prom::Counter& cancelled = prom::BuildCounter()
                                 .Name("tandem_requests_cancelled_total")
                                 .Help("Requests whose client disconnected before their end.")
                                 .Register(registry)
                                 .Add({});
  prom::Histogram& first_token =
      AddHistogram(registry, "tandem_time_to_first_token_seconds",
                   "From a request's arrival to its first token.", kWaitSeconds);
  prom::Histogram& inter_token = AddHistogram(registry, "tandem_inter_token_seconds",
                                              "From a token to the next.", kWaitSeconds);
  prom::Histogram& end_to_end = AddHistogram(registry, "tandem_request_seconds",
                                             "From a request's arrival to its end.", kWaitSeconds);
  prom::Histogram& queued =
      AddHistogram(registry, "tandem_queue_seconds", "From a request's arrival to its first step.",
                   kWaitSeconds);
  prom::Histogram& prompt_tokens = AddHistogram(registry, "tandem_request_prompt_tokens",
                                                "Prompt tokens of a request.", kTokenCounts);
  prom::Histogram& output_tokens = AddHistogram(registry, "tandem_request_output_tokens",
                                                "Output tokens of an answer.", kTokenCounts);
  std::function<std::optional<int64_t>()> free_memory;
  std::function<int32_t()> ranks;
};

Metrics::Metrics(MetricsOptions options) : impl_(std::make_unique<Impl>()) {
  prom::BuildGauge()
      .Name("tandem_build_info")
      .Help("Always 1; the labels give version and commit.")
      .Register(impl_->registry)
      .Add({{"commit", options.commit}, {"version", options.version}})
      .Set(1);
  impl_->free_memory = std::move(options.free_memory);
  impl_->ranks = std::move(options.ranks);
}
Metrics::~Metrics() = default;

void Metrics::CountResponse(std::string_view front_end, int status) {
  impl_->responses.Add({{"front_end", std::string(front_end)}, {"status", std::to_string(status)}})
      .Increment();
}

void Metrics::ObserveFirstToken(Nanos wait) { impl_->first_token.Observe(InSeconds(wait)); }
void Metrics::ObserveInterToken(Nanos wait) { impl_->inter_token.Observe(InSeconds(wait)); }
void Metrics::ObserveEndToEnd(Nanos wait) { impl_->end_to_end.Observe(InSeconds(wait)); }

void Metrics::CountFinished(TextFinish finish, const Usage& usage) {
  impl_->finished.Add({{"reason", std::string(TextFinishName(finish))}}).Increment();
  impl_->queued.Observe(InSeconds(usage.queued));
  impl_->prompt_tokens.Observe(usage.prompt_tokens);
  impl_->output_tokens.Observe(usage.output_tokens);
}

void Metrics::CountFailed(Code code) {
  impl_->failed.Add({{"code", std::string(CodeName(code))}}).Increment();
}

void Metrics::CountCancelled() { impl_->cancelled.Increment(); }

std::string Metrics::Text(std::span<const EngineStats> engines) const {
  std::vector<prom::MetricFamily> families = impl_->registry.Collect();
  AppendEngines(engines, families);
  AppendProcess(families);
  if (const auto free = impl_->free_memory ? impl_->free_memory() : std::nullopt) {
    families.push_back(Family("tandem_memory_free_bytes", "Free memory of the device that serves.",
                              kGauge, static_cast<double>(*free)));
  }
  if (const int32_t ranks = impl_->ranks ? impl_->ranks() : 0; ranks > 0) {
    families.push_back(Family("tandem_ranks", "Most ranks that a loaded model is split over.",
                              kGauge, static_cast<double>(ranks)));
  }
  std::sort(families.begin(), families.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return prom::TextSerializer().Serialize(families);
}

}  // namespace tandem::serve
