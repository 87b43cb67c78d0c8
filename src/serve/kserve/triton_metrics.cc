#include "serve/kserve/triton_metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "serve/unix_time.h"

namespace tandem::serve::kserve {
namespace {

namespace prom = prometheus;
using prom::MetricType;
using Label = prom::ClientMetric::Label;

template <typename Integer>
double Of(Integer count) {
  return static_cast<double>(count);
}
double Microseconds(Nanos time) { return Of(time.count() / 1000); }

// The families, in the order in which they are added; those without a metric are left out.
class Families {
 public:
  void Begin(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  // `labels` in the order of their names: clients compare the text.
  void Add(std::vector<Label> labels, double value) {
    prom::ClientMetric metric;
    metric.label = std::move(labels);
    const bool is_counter = families_.back().type == MetricType::Counter;
    (is_counter ? metric.counter.value : metric.gauge.value) = value;
    families_.back().metric.push_back(std::move(metric));
  }
  // `within` counts the values up to each bound, and all.
  void AddHistogram(std::vector<Label> labels, std::span<const int> bounds,
                    std::span<const uint64_t> within, double sum) {
    prom::ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram.sample_count = within.back();
    metric.histogram.sample_sum = sum;
    for (size_t i = 0; i < within.size(); ++i) {
      const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({within[i], bound});
    }
    families_.back().metric.push_back(std::move(metric));
  }
  std::string Text() {
    std::erase_if(families_, [](const auto& family) { return family.metric.empty(); });
    return prom::TextSerializer().Serialize(families_);
  }

 private:
  std::vector<prom::MetricFamily> families_;
};

Label Version() { return {"version", std::string(kModelVersion)}; }

struct ModelRow {
  const char* name;
  const char* help;
  MetricType type;
  double (*read)(const StatisticsSnapshot& figures);
};

constexpr ModelRow kModelRows[] = {
    {"nv_inference_request_success", "Number of successful inference requests, all batch sizes",
     MetricType::Counter, [](const auto& f) { return Of(f.success.count); }},
    {"nv_inference_count", "Number of inferences performed", MetricType::Counter,
     [](const auto& f) { return Of(f.inference_count); }},
    {"nv_inference_exec_count", "Number of model executions performed", MetricType::Counter,
     [](const auto& f) { return Of(f.execution_count); }},
    {"nv_inference_request_duration_us", "Cumulative inference request duration in microseconds",
     MetricType::Counter, [](const auto& f) { return Microseconds(f.success.time); }},
    {"nv_inference_queue_duration_us", "Cumulative inference queuing duration in microseconds",
     MetricType::Counter, [](const auto& f) { return Microseconds(f.queue.time); }},
    // Reading and writing tensors is part of the inference here.
    {"nv_inference_compute_input_duration_us",
     "Cumulative compute input duration in microseconds: part of the inference",
     MetricType::Counter, [](const auto&) { return 0.0; }},
    {"nv_inference_compute_infer_duration_us",
     "Cumulative compute inference duration in microseconds", MetricType::Counter,
     [](const auto& f) { return Microseconds(f.compute.time); }},
    {"nv_inference_compute_output_duration_us",
     "Cumulative compute output duration in microseconds: part of the inference",
     MetricType::Counter, [](const auto&) { return 0.0; }},
    {"nv_inference_pending_request_count", "Number of requests that are not answered completely",
     MetricType::Gauge, [](const auto& f) { return Of(f.pending); }},
};

void AddModels(std::span<const ModelFigures> models, Families& families) {
  for (const ModelRow& row : kModelRows) {
    families.Begin(row.name, row.help, row.type);
    for (const ModelFigures& model : models) {
      families.Add({{"model", model.name}, Version()}, row.read(model.statistics));
    }
  }
  families.Begin("nv_inference_request_failure",
                 "Number of failed inference requests, all batch sizes", MetricType::Counter);
  for (const ModelFigures& model : models) {
    for (size_t i = 0; i < kFailureReasons.size(); ++i) {
      families.Add({{"model", model.name}, {"reason", kFailureReasons[i]}, Version()},
                   Of(model.statistics.failures[i]));
    }
  }
  families.Begin("nv_inference_first_response_histogram_ms",
                 "Duration from request to first response in milliseconds, of decoupled models",
                 MetricType::Histogram);
  for (const ModelFigures& model : models) {
    if (!model.is_decoupled) continue;
    const auto& figures = model.statistics;
    families.AddHistogram({{"model", model.name}, Version()}, kFirstResponseMs,
                          figures.first_response_buckets,
                          Of(figures.first_response.time.count()) * 1e-6);
  }
  families.Begin("nv_model_load_duration_secs", "Model load time in seconds", MetricType::Gauge);
  for (const ModelFigures& model : models) {
    if (!model.load_time) continue;
    families.Add({{"model", model.name}, Version()}, InSeconds(*model.load_time));
  }
}

// A figure of an engine: one value of the label that tells the figures of its family apart.
struct EngineRow {
  const char* family;
  const char* help;   // of the family
  const char* label;  // its name
  const char* value;
  double (*read)(const EngineStats& stats);
};

constexpr const char* kRequests = "nv_trt_llm_request_metrics";
constexpr const char* kRequestsHelp = "Requests of the engine";
constexpr const char* kRequestType = "request_type";
constexpr const char* kMemory = "nv_trt_llm_runtime_memory_metrics";
constexpr const char* kMemoryHelp = "Bytes that the engine holds: weights, caches, scratch buffers";
constexpr const char* kMemoryType = "memory_type";
constexpr const char* kBlocks = "nv_trt_llm_kv_cache_block_metrics";
constexpr const char* kBlocksHelp = "Blocks of the engine's key-value cache";
constexpr const char* kBlockType = "kv_cache_block_type";
constexpr const char* kBatcher = "nv_trt_llm_inflight_batcher_metrics";
constexpr const char* kBatcherHelp = "The engine's newest step, and its preempted requests";
constexpr const char* kBatcherMetric = "inflight_batcher_specific_metric";

// The rows of a family stand together. Blocks that only the prefix cache holds count as free: they
// are given to whoever needs them.
constexpr EngineRow kEngineRows[] = {
    {kRequests, kRequestsHelp, kRequestType, "active",
     [](const EngineStats& s) { return Of(s.running + s.waiting); }},
    {kRequests, kRequestsHelp, kRequestType, "context",
     [](const EngineStats& s) { return Of(s.step.context_requests); }},
    {kRequests, kRequestsHelp, kRequestType, "max",
     [](const EngineStats& s) { return Of(s.max_running); }},
    {kRequests, kRequestsHelp, kRequestType, "scheduled",
     [](const EngineStats& s) { return Of(s.running); }},
    {kRequests, kRequestsHelp, kRequestType, "waiting",
     [](const EngineStats& s) { return Of(s.waiting); }},
    {kMemory, kMemoryHelp, kMemoryType, "cpu",
     [](const EngineStats& s) { return Of(s.memory.cpu); }},
    {kMemory, kMemoryHelp, kMemoryType, "gpu",
     [](const EngineStats& s) { return Of(s.memory.gpu); }},
    {kMemory, kMemoryHelp, kMemoryType, "pinned",
     [](const EngineStats& s) { return Of(s.memory.pinned); }},
    {kBlocks, kBlocksHelp, kBlockType, "fraction",
     [](const EngineStats& s) {
       return s.kv.total_blocks == 0 ? 0.0 : Of(s.kv.referenced_blocks) / s.kv.total_blocks;
     }},
    {kBlocks, kBlocksHelp, kBlockType, "free",
     [](const EngineStats& s) { return Of(s.kv.free_blocks + s.kv.cached_blocks); }},
    {kBlocks, kBlocksHelp, kBlockType, "max",
     [](const EngineStats& s) { return Of(s.kv.total_blocks); }},
    {kBlocks, kBlocksHelp, kBlockType, "reused",
     [](const EngineStats& s) {
       return s.kv.block_tokens == 0 ? 0.0 : Of(s.kv.hit_tokens / s.kv.block_tokens);
     }},
    {kBlocks, kBlocksHelp, kBlockType, "tokens_per",
     [](const EngineStats& s) { return Of(s.kv.block_tokens); }},
    {kBlocks, kBlocksHelp, kBlockType, "used",
     [](const EngineStats& s) { return Of(s.kv.referenced_blocks); }},
    {kBatcher, kBatcherHelp, kBatcherMetric, "generation_requests",
     [](const EngineStats& s) { return Of(s.step.generation_requests); }},
    {kBatcher, kBatcherHelp, kBatcherMetric, "micro_batch_id",
     [](const EngineStats&) { return 0.0; }},  // there is one
    {kBatcher, kBatcherHelp, kBatcherMetric, "paused_requests",
     [](const EngineStats& s) { return Of(s.paused); }},
    {kBatcher, kBatcherHelp, kBatcherMetric, "total_context_tokens",
     [](const EngineStats& s) { return Of(s.step.context_tokens); }},
};

void AddLengths(std::span<const EngineFigures> engines, const char* name, const char* help,
                const char* type, LengthHistogram TokenLengths::* lengths, Families& families) {
  families.Begin(name, help, MetricType::Histogram);
  for (const EngineFigures& engine : engines) {
    const LengthHistogram& histogram = engine.lengths.*lengths;
    families.AddHistogram({{"model", engine.model}, {"response_metric_type", type}, Version()},
                          LengthHistogram::kBounds, histogram.within, Of(histogram.sum));
  }
}

void AddEngines(std::span<const EngineFigures> engines, int64_t timestamp_us, Families& families) {
  // In the order of the labels' names: these two begin with a letter before "model".
  const auto labels = [](const EngineFigures& engine, const char* name, const char* value) {
    std::vector<Label> all = {{"model", engine.model}, {name, value}, Version()};
    if (std::string_view(name) < "model") std::swap(all[0], all[1]);
    return all;
  };
  std::string_view family;
  for (const EngineRow& row : kEngineRows) {
    if (row.family != family) families.Begin(row.family, row.help, MetricType::Gauge);
    family = row.family;
    for (const EngineFigures& engine : engines) {
      families.Add(labels(engine, row.label, row.value), row.read(engine.stats));
    }
  }
  families.Begin("nv_trt_llm_general_metrics", "When the engine's figures were read, and its steps",
                 MetricType::Gauge);
  for (const EngineFigures& engine : engines) {
    families.Add(labels(engine, "general_type", "iteration_counter"), Of(engine.stats.steps));
    families.Add(labels(engine, "general_type", "timestamp"), Of(timestamp_us));
  }
  AddLengths(engines, "nv_llm_input_token_len", "Tokens of the prompts of complete answers",
             "total_input_tokens", &TokenLengths::input, families);
  AddLengths(engines, "nv_llm_output_token_len", "Tokens of complete answers",
             "total_output_tokens", &TokenLengths::output, families);
}

void AddHost(const HostFigures& host, Families& families) {
  const auto add = [&families](const char* name, const char* help, const auto& value) {
    families.Begin(name, help, MetricType::Gauge);
    if (value) families.Add({}, static_cast<double>(*value));
  };
  add("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", host.cpu_utilization);
  add("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", host.memory_total);
  add("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", host.memory_used);
}

struct GpuRow {
  const char* name;
  const char* help;
  MetricType type;
  std::optional<double> (*read)(const GpuUsage& gpu);
};

constexpr GpuRow kGpuRows[] = {
    {"nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0]", MetricType::Gauge,
     [](const GpuUsage& gpu) { return gpu.utilization; }},
    {"nv_gpu_memory_total_bytes", "GPU total memory, in bytes", MetricType::Gauge,
     [](const GpuUsage& gpu) -> std::optional<double> { return gpu.memory_total; }},
    {"nv_gpu_memory_used_bytes", "GPU used memory, in bytes", MetricType::Gauge,
     [](const GpuUsage& gpu) -> std::optional<double> { return gpu.memory_used; }},
    {"nv_gpu_power_usage", "GPU power usage in watts", MetricType::Gauge,
     [](const GpuUsage& gpu) { return gpu.power_usage; }},
    {"nv_gpu_power_limit", "GPU power management limit in watts", MetricType::Gauge,
     [](const GpuUsage& gpu) { return gpu.power_limit; }},
    {"nv_energy_consumption", "GPU energy consumption in joules since the server started",
     MetricType::Counter, [](const GpuUsage& gpu) { return gpu.energy; }},
};

void AddGpus(std::span<const GpuUsage> gpus, Families& families) {
  for (const GpuRow& row : kGpuRows) {
    families.Begin(row.name, row.help, row.type);
    for (const GpuUsage& gpu : gpus) {
      if (const auto value = row.read(gpu)) families.Add({{"gpu_uuid", gpu.uuid}}, *value);
    }
  }
}

// Zeros on a machine without /proc.
CpuTimes ReadCpuTimes() {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;  // "cpu": all processors
  CpuTimes times;
  double ticks = 0;
  constexpr int kIdle = 3, kIoWait = 4, kSteal = 7;  // what follows is part of the others
  for (int i = 0; i <= kSteal && file >> ticks; ++i) {
    times.total += ticks;
    if (i != kIdle && i != kIoWait) times.busy += ticks;
  }
  return times;
}

void ReadMemory(HostFigures& host) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  int64_t kilobytes = 0;
  std::optional<int64_t> available;
  while (file >> name >> kilobytes && std::getline(file, unit)) {
    if (name == "MemTotal:") host.memory_total = kilobytes * 1024;
    if (name == "MemAvailable:") available = kilobytes * 1024;
  }
  if (host.memory_total && available) host.memory_used = *host.memory_total - *available;
}

}  // namespace

std::string FormatTritonMetrics(std::span<const ModelFigures> models,
                                std::span<const EngineFigures> engines, const HostFigures& host,
                                int64_t timestamp_us) {
  Families families;
  AddModels(models, families);
  AddEngines(engines, timestamp_us, families);
  AddGpus(host.gpus, families);
  AddHost(host, families);
  return families.Text();
}

std::string TritonMetrics::Text() {
  std::vector<EngineFigures> engines;
  for (const ModelPtr& engine : engines_.Engines()) {
    engines.push_back({engine->name, engine->service->Stats(), engine->service->token_lengths()});
  }
  HostFigures host;
  ReadMemory(host);
  if (read_gpus_) host.gpus = read_gpus_();
  {
    const CpuTimes now = ReadCpuTimes();
    const MutexLock lock(mutex_);
    const CpuTimes before = std::exchange(last_, now);
    if (now.total > before.total) {
      host.cpu_utilization = (now.busy - before.busy) / (now.total - before.total);
    }
  }
  return FormatTritonMetrics(models_.Figures(), engines, host, UnixNanoseconds() / 1000);
}

}  // namespace tandem::serve::kserve
