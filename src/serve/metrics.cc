#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::serve {
namespace {

namespace prom = prometheus;

const prom::Histogram::BucketBoundaries kWaitSeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160};
const prom::Histogram::BucketBoundaries kTokenCounts = {1,   2,   5,    10,   20,   50,   100,
                                                        200, 500, 1000, 2000, 5000, 10000};

double Seconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

prom::Histogram& AddHistogram(prom::Registry& registry, const char* name, const char* help,
                              const prom::Histogram::BucketBoundaries& buckets) {
  return prom::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

// A total of the engine's, shown as a counter although it is read and not counted here.
prom::MetricFamily EngineFigure(const std::string& name, const std::string& help,
                                prom::MetricType type, double value) {
  prom::ClientMetric metric;
  if (type == prom::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {name, help, type, {metric}};
}

prom::MetricFamily KvBlocks(const KvCacheStats& kv) {
  prom::MetricFamily family{
      "tandem_kv_blocks", "Key-value cache blocks by state.", prom::MetricType::Gauge, {}};
  const auto add = [&family](const char* state, int32_t blocks) {
    prom::ClientMetric metric;
    metric.label = {{"state", state}};
    metric.gauge.value = blocks;
    family.metric.push_back(std::move(metric));
  };
  add("cached", kv.cached_blocks);
  add("free", kv.free_blocks);
  add("referenced", kv.referenced_blocks);
  return family;
}

void AppendEngine(const EngineStats& stats, std::vector<prom::MetricFamily>& out) {
  const auto gauge = [&out](const char* name, const char* help, double value) {
    out.push_back(EngineFigure(name, help, prom::MetricType::Gauge, value));
  };
  const auto counter = [&out](const char* name, const char* help, int64_t value) {
    out.push_back(EngineFigure(name, help, prom::MetricType::Counter, static_cast<double>(value)));
  };
  gauge("tandem_requests_running", "Sequences in the running batch.", stats.running);
  gauge("tandem_requests_waiting", "Sequences in the queue.", stats.waiting);
  gauge("tandem_kv_blocks_total", "Key-value cache blocks in all.", stats.kv.total_blocks);
  out.push_back(KvBlocks(stats.kv));
  gauge("tandem_engine_heartbeat_age_seconds", "Time since the engine last made progress.",
        stats.seconds_since_progress);
  counter("tandem_engine_steps_total", "Turns of the engine's loop.", stats.steps);
  counter("tandem_engine_requests_finished_total", "Requests that the engine ended well.",
          stats.requests_finished);
  counter("tandem_engine_requests_failed_total", "Requests that the engine ended with an error.",
          stats.requests_failed);
  counter("tandem_preemptions_total", "Sequences paused for want of blocks.", stats.preemptions);
  counter("tandem_prompt_tokens_total", "Prompt tokens of admitted requests.", stats.prompt_tokens);
  counter("tandem_output_tokens_total", "Tokens generated.", stats.output_tokens);
  counter("tandem_prefix_lookup_tokens_total", "Prompt tokens looked up in the prefix cache.",
          stats.kv.lookup_tokens);
  counter("tandem_prefix_hit_tokens_total", "Prompt tokens found in the prefix cache.",
          stats.kv.hit_tokens);
  counter("tandem_kv_evictions_total", "Cached blocks given up for others.", stats.kv.evictions);
  counter("tandem_draft_rounds_total", "Verifications that carried a draft.", stats.draft_rounds);
  counter("tandem_drafts_proposed_total", "Draft tokens verified.", stats.drafts_proposed);
  counter("tandem_drafts_accepted_total", "Draft tokens that held.", stats.drafts_accepted);
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
  std::function<int64_t()> free_memory;
};

Metrics::Metrics(std::function<int64_t()> free_memory) : impl_(std::make_unique<Impl>()) {
  impl_->free_memory = std::move(free_memory);
}
Metrics::~Metrics() = default;

void Metrics::CountResponse(std::string_view front_end, int status) {
  impl_->responses.Add({{"front_end", std::string(front_end)}, {"status", std::to_string(status)}})
      .Increment();
}

void Metrics::ObserveFirstToken(Nanos wait) { impl_->first_token.Observe(Seconds(wait)); }
void Metrics::ObserveInterToken(Nanos wait) { impl_->inter_token.Observe(Seconds(wait)); }
void Metrics::ObserveEndToEnd(Nanos wait) { impl_->end_to_end.Observe(Seconds(wait)); }

void Metrics::CountFinished(TextFinish finish, const Usage& usage) {
  impl_->finished.Add({{"reason", std::string(TextFinishName(finish))}}).Increment();
  impl_->queued.Observe(Seconds(usage.queued));
  impl_->prompt_tokens.Observe(usage.prompt_tokens);
  impl_->output_tokens.Observe(usage.output_tokens);
}

void Metrics::CountFailed(Code code) {
  impl_->failed.Add({{"code", std::string(CodeName(code))}}).Increment();
}

std::string Metrics::Text(const EngineStats& engine) const {
  std::vector<prom::MetricFamily> families = impl_->registry.Collect();
  AppendEngine(engine, families);
  if (impl_->free_memory) {
    families.push_back(
        EngineFigure("tandem_memory_free_bytes", "Free memory of the device that serves.",
                     prom::MetricType::Gauge, static_cast<double>(impl_->free_memory())));
  }
  std::sort(families.begin(), families.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return prom::TextSerializer().Serialize(families);
}

}  // namespace tandem::serve
