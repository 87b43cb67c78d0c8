#include "apps/models/devices.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <system_error>

#include "base/cores.h"

namespace tandem::apps {
namespace {

constexpr int kMostThreadsPerCore = 4;
constexpr std::string_view kDevice = "device";

Result<std::unique_ptr<ops::Backend>> MakeCpu(const ops::CpuOptions& options) {
  auto backend = ops::MakeCpuBackend(options);
  if (!backend.ok()) return backend.status().Annotate("--isa");
  return backend;
}

// The number in "cuda:1"; 0 for "cuda". `option`: whose value it is.
Result<int> ParseCudaDevice(std::string_view device, std::string_view option = kDevice) {
  constexpr std::string_view kCuda = "cuda";
  int index = 0;
  std::string_view number = device;
  if (device.starts_with(kCuda)) number.remove_prefix(kCuda.size());
  if (number.empty()) return index;
  const char* begin = number.data() + 1;
  const char* end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(begin, end, index);
  if (number.front() != ':' || begin == end || error != std::errc{} || rest != end) {
    return InvalidArgument(fmt::format("--{}: '{}' is none of {}cpu, cuda, cuda:0, cuda:1 ...",
                                       option, device, option == kDevice ? "auto, " : ""));
  }
  return index;
}

}  // namespace

const BoundOptions<BackendOptions>& BackendOptionRows() {
  constexpr std::string_view kMachine = "Machine";
  static const BoundOptions<BackendOptions> rows({
      BindOption<BackendOptions, &BackendOptions::device>(
          {.name = "device",
           .meaning =
               "cpu, cuda or cuda:N; auto: the first GPU where there is one. Verbs with ranks take "
               "several between commas, as in cuda:1,cuda:2: one for each rank of all stages and "
               "replicas, or of this process where there are several",
           .group = kMachine}),
      BindOption<BackendOptions, [](BackendOptions& o) -> auto& { return o.cuda.batch_invariant; }>(
          {.name = "batch_invariant",
           .meaning = "GPU: results that do not depend on the other sequences of a step, without "
                      "the fastest kernels (a CPU's results never depend on them)",
           .group = kMachine}),
      BindOption<BackendOptions, [](BackendOptions& o) -> auto& { return o.cpu.num_threads; }>(
          {.name = "threads",
           .meaning = "Compute threads, at most four per core; 0: one per core",
           .group = kMachine,
           .min = 0,
           .max = 1024}),
      BindOption<BackendOptions, [](BackendOptions& o) -> auto& { return o.cpu.pin_threads; }>(
          {.name = "pin_threads",
           .meaning = "Bind each compute thread to a core",
           .group = kMachine}),
      BindOption<BackendOptions, [](BackendOptions& o) -> auto& { return o.cpu.isa; }>(
          {.name = "isa",
           .meaning = "Instruction set of the kernels; auto: chosen by a short measurement",
           .group = kMachine}),
  });
  return rows;
}

bool IsOnCpu(const BackendOptions& options) {
  const std::string_view first =
      std::string_view(options.device).substr(0, options.device.find(','));
  return first == "cpu" || (options.device == "auto" && ops::NumCudaDevices() == 0);
}

Result<std::vector<std::string>> DevicesOf(const BackendOptions& options) {
  return ListDevices(options.device, kDevice);
}

Result<std::vector<std::string>> ListDevices(std::string_view text, std::string_view option) {
  std::vector<std::string> devices;
  std::set<int> gpus;
  for (std::string_view rest = text;;) {
    const size_t end = std::min(rest.find(','), rest.size());
    devices.emplace_back(rest.substr(0, end));
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  if (devices.size() == 1) return devices;
  for (const std::string& device : devices) {
    const bool is_cpu = device == "cpu";
    if (is_cpu != (devices.front() == "cpu") || (!is_cpu && !device.starts_with("cuda"))) {
      return InvalidArgument(
          fmt::format("--{}: '{}' is no list of devices for ranks: name GPUs, as in "
                      "cuda:1,cuda:2, or cpu for each rank",
                      option, text));
    }
    if (is_cpu) continue;
    TANDEM_ASSIGN_OR_RETURN(const int gpu, ParseCudaDevice(device, option));
    if (!gpus.insert(gpu).second) {
      return InvalidArgument(
          fmt::format("--{}: '{}' names GPU {} twice; each rank needs its own", option, text, gpu));
    }
  }
  return devices;
}

Result<std::vector<int>> GpusOf(const std::vector<std::string>& devices, std::string_view option) {
  std::vector<int> gpus;
  for (const std::string& device : devices) {
    if (device == "auto") {
      gpus.push_back(0);
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(gpus.emplace_back(), ParseCudaDevice(device, option));
  }
  return gpus;
}

Result<int32_t> NumPlaces(const BackendOptions& options) {
  if (IsOnCpu(options)) return AvailableCores();
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> devices, DevicesOf(options));
  if (devices.size() > 1) return static_cast<int32_t>(devices.size());
  int first = 0;
  if (options.device != "auto") {
    TANDEM_ASSIGN_OR_RETURN(first, ParseCudaDevice(options.device));
  }
  return std::max(ops::NumCudaDevices() - first, 1);
}

ops::CpuOptions ShareOf(const ops::CpuOptions& cpu, int parts, int index) {
  ops::CpuOptions share = cpu;
  const int threads = cpu.num_threads > 0 ? cpu.num_threads : AvailableCores();
  share.num_threads = std::max(threads / parts, 1);
  share.first_core += index * share.num_threads;
  return share;
}

Status CheckThreads(const BackendOptions& options) {
  if (const int cores = AvailableCores(); options.cpu.num_threads > kMostThreadsPerCore * cores) {
    return InvalidArgument(fmt::format(
        "--threads {}: this process has {} core{}, and takes at most {} threads per core, because "
        "they wait for each other without sleeping; 0 takes one per core",
        options.cpu.num_threads, cores, cores == 1 ? "" : "s", kMostThreadsPerCore));
  }
  return {};
}

Result<std::unique_ptr<ops::Backend>> MakeBackend(const BackendOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckThreads(options));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> devices, DevicesOf(options));
  if (devices.size() > 1) {
    return InvalidArgument(fmt::format("--device: '{}' names {} devices; this runs on one",
                                       options.device, devices.size()));
  }
  if (IsOnCpu(options)) return MakeCpu(options.cpu);
  ops::CudaOptions cuda = options.cuda;
  if (options.device != "auto") {
    TANDEM_ASSIGN_OR_RETURN(cuda.device, ParseCudaDevice(options.device));
  }
  auto backend = ops::MakeCudaBackend(cuda);
  if (!backend.ok()) return backend.status().Annotate("--device");
  return backend;
}

Result<std::shared_ptr<ops::Backend>> SharedDevices::BackendFor(const BackendOptions& options,
                                                                int32_t replica) {
  const MutexLock lock(mutex_);
  if (!IsOnCpu(options)) {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<ops::Backend> backend, MakeBackend(options));
    return backend;
  }
  std::shared_ptr<ops::Backend>& cpu = cpus_[{replica, options.cpu.num_threads}];
  if (cpu == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(cpu, MakeBackend(options));
  }
  return cpu;
}

std::shared_ptr<Turns> SharedDevices::TurnsOf(Device device, int32_t replica) {
  const MutexLock lock(mutex_);
  const bool is_cpu = device.kind == Device::Kind::kCpu;
  std::shared_ptr<Turns>& turns = turns_[{device.kind, is_cpu ? replica : device.index}];
  if (turns == nullptr) turns = std::make_shared<Turns>();
  return turns;
}

}  // namespace tandem::apps
