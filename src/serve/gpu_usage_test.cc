#include "serve/gpu_usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace tandem::serve {
namespace {

constexpr int kNotSupported = 3;  // NVML_ERROR_NOT_SUPPORTED

unsigned long long millijoules = 0;

// Two GPUs: the first measures everything, the second only its memory.
Nvml TwoGpus() {
  static int first = 0, second = 0;
  const auto of = [](int& gpu) { return reinterpret_cast<Nvml::Device>(&gpu); };
  static const Nvml::Device kFirst = of(first), kSecond = of(second);
  Nvml nvml;
  nvml.Init = [] { return 0; };
  nvml.GetCount = [](unsigned int* count) {
    *count = 2;
    return 0;
  };
  nvml.GetHandleByIndex = [](unsigned int index, Nvml::Device* device) {
    *device = index == 0 ? kFirst : kSecond;
    return 0;
  };
  nvml.GetUuid = [](Nvml::Device device, char* uuid, unsigned int size) {
    std::strncpy(uuid, device == kFirst ? "GPU-1" : "GPU-2", size);
    return 0;
  };
  nvml.GetUtilizationRates = [](Nvml::Device device, Nvml::Utilization* rates) {
    *rates = {.gpu = 75, .memory = 10};
    return device == kFirst ? 0 : kNotSupported;
  };
  nvml.GetMemoryInfo = [](Nvml::Device, Nvml::Memory* memory) {
    memory->total = 80ull << 30;
    memory->used = 20ull << 30;
    return 0;
  };
  nvml.GetPowerUsage = [](Nvml::Device device, unsigned int* power) {
    *power = 350500;
    return device == kFirst ? 0 : kNotSupported;
  };
  nvml.GetEnforcedPowerLimit = [](Nvml::Device device, unsigned int* power) {
    *power = 700000;
    return device == kFirst ? 0 : kNotSupported;
  };
  nvml.GetTotalEnergyConsumption = [](Nvml::Device device, unsigned long long* energy) {
    *energy = millijoules;
    return device == kFirst ? 0 : kNotSupported;
  };
  return nvml;
}

TEST(GpuMeterTest, ReadsEveryGpuInTheUnitsOfItsFigures) {
  millijoules = 5'000'000;
  const auto meter = GpuMeter::Make(TwoGpus());
  ASSERT_NE(meter, nullptr);
  millijoules += 1'500;
  const std::vector<GpuUsage> gpus = meter->Read();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].uuid, "GPU-1");
  EXPECT_EQ(gpus[0].utilization, 0.75);
  EXPECT_EQ(gpus[0].memory_total, int64_t{80} << 30);
  EXPECT_EQ(gpus[0].memory_used, int64_t{20} << 30);
  EXPECT_DOUBLE_EQ(gpus[0].power_usage.value(), 350.5);
  EXPECT_DOUBLE_EQ(gpus[0].power_limit.value(), 700);
  EXPECT_DOUBLE_EQ(gpus[0].energy.value(), 1.5) << "since the meter was made";
}

TEST(GpuMeterTest, AFigureThatAGpuDoesNotMeasureIsAbsent) {
  const auto meter = GpuMeter::Make(TwoGpus());
  ASSERT_NE(meter, nullptr);
  const GpuUsage gpu = meter->Read()[1];
  EXPECT_EQ(gpu.uuid, "GPU-2");
  EXPECT_EQ(gpu.memory_used, int64_t{20} << 30);
  EXPECT_EQ(gpu.utilization, std::nullopt);
  EXPECT_EQ(gpu.power_usage, std::nullopt);
  EXPECT_EQ(gpu.power_limit, std::nullopt);
  EXPECT_EQ(gpu.energy, std::nullopt);
}

TEST(GpuMeterTest, ThereIsNoMeterWithoutALibraryOrAGpu) {
  EXPECT_EQ(GpuMeter::Load("libthat-is-not-there.so.1"), nullptr);
  EXPECT_EQ(GpuMeter::Load("libm.so.6"), nullptr) << "a library without these functions";
  Nvml none = TwoGpus();
  none.GetCount = [](unsigned int* count) {
    *count = 0;
    return 0;
  };
  EXPECT_EQ(GpuMeter::Make(none), nullptr);
  Nvml broken = TwoGpus();
  broken.Init = [] { return 9; };  // NVML_ERROR_DRIVER_NOT_LOADED
  EXPECT_EQ(GpuMeter::Make(broken), nullptr);
}

}  // namespace
}  // namespace tandem::serve
