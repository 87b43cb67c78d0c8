#include "serve/gpu_usage.h"

#include <dlfcn.h>

#include <array>

namespace tandem::serve {
namespace {

constexpr int kSuccess = 0;  // NVML_SUCCESS

// A figure in thousandths of its unit.
template <typename Integer>
std::optional<double> Thousandths(int (*read)(Nvml::Device, Integer*), Nvml::Device device) {
  Integer value = 0;
  if (read(device, &value) != kSuccess) return std::nullopt;
  return static_cast<double>(value) * 1e-3;
}

std::string UuidOf(const Nvml& nvml, Nvml::Device device) {
  std::array<char, 96> uuid{};  // NVML_DEVICE_UUID_V2_BUFFER_SIZE
  const bool is_known = nvml.GetUuid(device, uuid.data(), uuid.size()) == kSuccess;
  uuid.back() = '\0';
  return is_known ? uuid.data() : "";
}

}  // namespace

std::unique_ptr<GpuMeter> GpuMeter::Load(const char* library) {
  // Never unloaded: its threads may outlive every meter.
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  Nvml nvml;
  bool is_complete = true;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    is_complete = is_complete && function != nullptr;
  };
  find("nvmlInit_v2", nvml.Init);
  find("nvmlDeviceGetCount_v2", nvml.GetCount);
  find("nvmlDeviceGetHandleByIndex_v2", nvml.GetHandleByIndex);
  find("nvmlDeviceGetUUID", nvml.GetUuid);
  find("nvmlDeviceGetUtilizationRates", nvml.GetUtilizationRates);
  find("nvmlDeviceGetMemoryInfo_v2", nvml.GetMemoryInfo);
  find("nvmlDeviceGetPowerUsage", nvml.GetPowerUsage);
  find("nvmlDeviceGetEnforcedPowerLimit", nvml.GetEnforcedPowerLimit);
  find("nvmlDeviceGetTotalEnergyConsumption", nvml.GetTotalEnergyConsumption);
  return is_complete ? Make(nvml) : nullptr;
}

std::unique_ptr<GpuMeter> GpuMeter::Make(const Nvml& nvml) {
  unsigned int count = 0;
  if (nvml.Init() != kSuccess || nvml.GetCount(&count) != kSuccess) return nullptr;
  std::unique_ptr<GpuMeter> meter(new GpuMeter(nvml));
  for (unsigned int i = 0; i < count; ++i) {
    Gpu gpu;
    if (nvml.GetHandleByIndex(i, &gpu.device) != kSuccess) continue;  // not this process's
    gpu.uuid = UuidOf(nvml, gpu.device);
    if (gpu.uuid.empty()) continue;
    gpu.first_energy = meter->EnergyOf(gpu.device).value_or(0);
    meter->gpus_.push_back(std::move(gpu));
  }
  return meter->gpus_.empty() ? nullptr : std::move(meter);
}

std::vector<GpuUsage> GpuMeter::Read() const {
  std::vector<GpuUsage> usage;
  for (const Gpu& gpu : gpus_) usage.push_back(Read(gpu));
  return usage;
}

GpuUsage GpuMeter::Read(const Gpu& gpu) const {
  GpuUsage usage;
  usage.uuid = gpu.uuid;
  Nvml::Utilization rates{};
  if (nvml_.GetUtilizationRates(gpu.device, &rates) == kSuccess)
    usage.utilization = rates.gpu / 100.0;
  Nvml::Memory memory;
  if (nvml_.GetMemoryInfo(gpu.device, &memory) == kSuccess) {
    usage.memory_total = static_cast<int64_t>(memory.total);
    usage.memory_used = static_cast<int64_t>(memory.used);
  }
  usage.power_usage = Thousandths(nvml_.GetPowerUsage, gpu.device);
  usage.power_limit = Thousandths(nvml_.GetEnforcedPowerLimit, gpu.device);
  usage.energy = EnergyOf(gpu.device);
  if (usage.energy) *usage.energy -= gpu.first_energy;
  return usage;
}

std::optional<double> GpuMeter::EnergyOf(Nvml::Device device) const {
  return Thousandths(nvml_.GetTotalEnergyConsumption, device);
}

}  // namespace tandem::serve
