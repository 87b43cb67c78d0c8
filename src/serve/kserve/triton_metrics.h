// TritonMetrics: the figures of the models and their engines under the names and labels that
// Triton's users know, as Prometheus text. Figures that have no source here are absent. Owned by
// the server; every method may be called on any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "runtime/engine_stats.h"
#include "serve/gpu_usage.h"
#include "serve/kserve/repository.h"
#include "serve/model_registry.h"
#include "serve/token_lengths.h"

namespace tandem::serve::kserve {

struct EngineFigures {
  std::string model;
  EngineStats stats;
  TokenLengths lengths;
};

// Processor time of the machine since its start, in ticks.
struct CpuTimes {
  double busy = 0;
  double total = 0;
};

struct HostFigures {
  std::optional<double> cpu_utilization;  // between 0 and 1
  std::optional<int64_t> memory_total;    // bytes
  std::optional<int64_t> memory_used;
  std::vector<GpuUsage> gpus;
};

// `timestamp_us`: now, since 1970.
std::string FormatTritonMetrics(std::span<const ModelFigures> models,
                                std::span<const EngineFigures> engines, const HostFigures& host,
                                int64_t timestamp_us);

class TritonMetrics {
 public:
  using ReadGpus = std::function<std::vector<GpuUsage>()>;

  // Models and engines outlive this. `read_gpus` may be empty: the figures of GPUs are absent.
  TritonMetrics(const Repository& models, const ModelRegistry& engines, ReadGpus read_gpus)
      : models_(models), engines_(engines), read_gpus_(std::move(read_gpus)) {}

  // Reads the GPUs once. The use of the CPU is that since the call before.
  std::string Text();

 private:
  const Repository& models_;
  const ModelRegistry& engines_;
  const ReadGpus read_gpus_;
  Mutex mutex_;
  CpuTimes last_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::serve::kserve
