// `tandem doctor`: describes this machine and how Tandem would use it.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/verbs.h"
#include "apps/models/session.h"
#include "base/cores.h"
#include "comm/gpu_links.h"
#include "ops/backend.h"

namespace tandem::apps {
namespace {

// A field of /proc/cpuinfo or /proc/meminfo, by the text before the colon.
std::string ProcField(const char* file, std::string_view field) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(field)) continue;
    const size_t colon = line.find(':');
    const size_t text = line.find_first_not_of(" \t", colon + 1);
    if (colon != std::string::npos && text != std::string::npos) return line.substr(text);
  }
  return "unknown";
}

struct Findings {
  std::string cpu;
  std::string memory_total;
  std::string memory_available;
  std::vector<std::string> isas;
  std::string backend;
  double read_bandwidth = 0;
  double matrix_peak = 0;
  std::string pair;
  GpuLinks links;
  std::optional<std::string> nccl;
};

nlohmann::ordered_json ToJson(const GpuLinks& links) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const GpuLink& link : links.links) {
    rows.push_back({{"gpus", {link.first, link.second}},
                    {"peer_access", link.can_read},
                    {"nvlink", link.has_atomics},
                    {"performance_rank", link.performance_rank}});
  }
  return rows;
}

nlohmann::ordered_json ToJson(const Findings& f) {
  return {
      {"cpu", f.cpu},
      {"cores", AvailableCores()},
      {"memory_total", f.memory_total},
      {"memory_available", f.memory_available},
      {"isas", f.isas},
      {"backend", f.backend},
      {"read_bytes_per_s", f.read_bandwidth},
      {"bf16_flops_per_s", f.matrix_peak},
      {"embedded_pair", f.pair},
      {"gpus", f.links.num_gpus},
      {"links", ToJson(f.links)},
      {"nccl", f.nccl ? nlohmann::ordered_json(*f.nccl) : nullptr},
  };
}

Status Run(const OptionValues& values, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const auto backend, MakeBackend(BackendOptionRows().Read(values)));
  Findings f;
  f.cpu = ProcField("/proc/cpuinfo", "model name");
  f.memory_total = ProcField("/proc/meminfo", "MemTotal");
  f.memory_available = ProcField("/proc/meminfo", "MemAvailable");
  f.isas = ops::SupportedCpuIsas();
  f.backend = backend->Describe();
  const auto pair = EmbeddedPairFolder();
  f.pair = pair.ok() ? pair->string() : "not found";
  console.Say(fmt::format("CPU        {}, {} cores", f.cpu, AvailableCores()));
  console.Say(fmt::format("memory     {}, {} available", f.memory_total, f.memory_available));
  console.Say(fmt::format("ISAs       {} (this build and this CPU)", fmt::join(f.isas, ", ")));
  console.Say(fmt::format("backend    {}", f.backend));
  f.read_bandwidth = backend->MeasureReadBandwidth();
  console.Say(fmt::format("DRAM read  {:.1f} GB/s: decoding one sequence is bound by it",
                          f.read_bandwidth / 1e9));
  f.matrix_peak = backend->MeasureMatrixPeak(DType::kBF16);
  console.Say(
      fmt::format("bf16       {:.2f} TFLOP/s: prompts are bound by it", f.matrix_peak / 1e12));
  f.links = ReadGpuLinks();
  for (std::string_view title = "links"; const std::string& line : DescribeLinks(f.links)) {
    console.Say(fmt::format("{:10} {}", title, line));
    title = "";
  }
  if (const Result<std::string> nccl = NcclVersion(); nccl.ok()) f.nccl = *nccl;
  console.Say(fmt::format(
      "NCCL       {}; for a model over the GPUs of several machines: within one the sums "
      "of ranks are kernels of this program",
      f.nccl ? *f.nccl : "no libnccl.so.2"));
  console.Say(fmt::format("models     embedded pair: {}", f.pair));
  console.Result(ToJson(f));
  return pair.ok() ? Status() : pair.status();
}

}  // namespace

Command DoctorCommand() {
  return {.name = "doctor",
          .summary = "Look at this machine: CPU, memory, measured limits, embedded models",
          .examples = "  tandem doctor\n",
          .options = Join({BackendOptionRows().specs()}),
          .run = Run};
}

}  // namespace tandem::apps
