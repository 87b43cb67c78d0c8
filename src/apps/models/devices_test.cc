#include "apps/models/devices.h"

#include <gtest/gtest.h>

namespace tandem::apps {
namespace {

constexpr Device kCpu = {};
constexpr Device kFirstGpu = {.kind = Device::Kind::kCuda, .index = 0};
constexpr Device kSecondGpu = {.kind = Device::Kind::kCuda, .index = 1};

TEST(SharedDevicesTest, EnginesTakeTurnsWithThoseOfTheirOwnDeviceOnly) {
  SharedDevices devices;
  const std::shared_ptr<Turns> first = devices.TurnsOf(kFirstGpu);
  EXPECT_EQ(devices.TurnsOf(kFirstGpu), first);
  EXPECT_NE(devices.TurnsOf(kSecondGpu), first);
  EXPECT_NE(devices.TurnsOf(kCpu), first);
  // An engine on the other GPU runs while one on this GPU has its turn.
  const Turn held(first.get());
  const Turn other(devices.TurnsOf(kSecondGpu).get());
}

TEST(SharedDevicesTest, EnginesOnACpuHaveOneBackend) {
  SharedDevices devices;
  BackendOptions options;
  options.device = "cpu";
  options.cpu.num_threads = 1;
  const auto backend = devices.BackendFor(options);
  ASSERT_TRUE(backend.ok()) << backend.status().message();
  EXPECT_EQ(*devices.BackendFor(options), *backend);
  EXPECT_NE(*SharedDevices().BackendFor(options), *backend);
}

TEST(SharedDevicesTest, ReplicasHaveTheirOwnShareOfACpuAndGpusAreTheirOwnAnyway) {
  SharedDevices devices;
  EXPECT_NE(devices.TurnsOf(kCpu, 1), devices.TurnsOf(kCpu));
  EXPECT_EQ(devices.TurnsOf(kCpu, 1), devices.TurnsOf(kCpu, 1));
  EXPECT_EQ(devices.TurnsOf(kSecondGpu, 1), devices.TurnsOf(kSecondGpu));
}

}  // namespace
}  // namespace tandem::apps
