// GpuMeter: the use of the machine's GPUs, as NVIDIA's management library (NVML) measures it. The
// library comes with the driver and is loaded at run time, so that neither building nor running
// needs it. Owned by whoever starts the servers; every method may be called on any thread, and may
// take milliseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tandem::serve {

// A figure that the GPU or its driver does not measure is absent.
struct GpuUsage {
  std::string uuid;                     // "GPU-..."
  std::optional<double> utilization;    // between 0 and 1
  std::optional<int64_t> memory_total;  // bytes
  std::optional<int64_t> memory_used;
  std::optional<double> power_usage;  // watts
  std::optional<double> power_limit;
  std::optional<double> energy;  // joules, since the meter was made
};

// The functions of the library and their types, as NVIDIA's nvml.h declares
// them. Every function returns 0 when it succeeds.
struct Nvml {
  using Device = struct nvmlDevice_st*;
  struct Utilization {
    unsigned int gpu;  // percent
    unsigned int memory;
  };
  struct Memory {  // nvmlMemory_v2_t: `used` without what the driver reserves, as nvidia-smi has it
    unsigned int version = sizeof(Memory) | (2u << 24);
    unsigned long long total = 0;  // bytes
    unsigned long long reserved = 0;
    unsigned long long free = 0;
    unsigned long long used = 0;
  };

  int (*Init)() = nullptr;
  int (*GetCount)(unsigned int*) = nullptr;
  int (*GetHandleByIndex)(unsigned int, Device*) = nullptr;
  int (*GetUuid)(Device, char*, unsigned int) = nullptr;
  int (*GetUtilizationRates)(Device, Utilization*) = nullptr;
  int (*GetMemoryInfo)(Device, Memory*) = nullptr;
  int (*GetPowerUsage)(Device, unsigned int*) = nullptr;                    // milliwatts
  int (*GetEnforcedPowerLimit)(Device, unsigned int*) = nullptr;            // milliwatts
  int (*GetTotalEnergyConsumption)(Device, unsigned long long*) = nullptr;  // millijoules
};

class GpuMeter {
 public:
  // Null when there is no such library, it lacks a function, or it finds no GPU.
  static std::unique_ptr<GpuMeter> Load(const char* library = "libnvidia-ml.so.1");
  // Null when the functions find no GPU.
  static std::unique_ptr<GpuMeter> Make(const Nvml& nvml);

  // Every GPU that the driver shows to this process, in the driver's order.
  std::vector<GpuUsage> Read() const;

 private:
  struct Gpu {
    Nvml::Device device = nullptr;
    std::string uuid;
    double first_energy = 0;  // when the meter was made
  };

  explicit GpuMeter(const Nvml& nvml) : nvml_(nvml) {}
  GpuUsage Read(const Gpu& gpu) const;
  std::optional<double> EnergyOf(Nvml::Device device) const;

  const Nvml nvml_;
  std::vector<Gpu> gpus_;  // constant
};

}  // namespace tandem::serve
