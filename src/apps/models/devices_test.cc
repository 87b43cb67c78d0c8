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

TEST(SharedDevicesTest, AnEngineOnTheShareOfARankLeavesTheOthersTheirThreads) {
  SharedDevices devices;
  BackendOptions options;
  options.device = "cpu";
  options.cpu.num_threads = 1;
  const auto share = devices.BackendFor(options);
  ASSERT_TRUE(share.ok()) << share.status().message();
  options.cpu.num_threads = 2;
  const auto all = devices.BackendFor(options);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_NE(*all, *share);
}

TEST(DevicesOf, SeveralAreDifferentGpusOrRanksOfTheCpu) {
  using List = std::vector<std::string>;
  const auto devices = [](const char* text) {
    BackendOptions options;
    options.device = text;
    return DevicesOf(options);
  };
  EXPECT_EQ(*devices("auto"), List{"auto"});
  EXPECT_EQ(*devices("cuda:3"), List{"cuda:3"});
  EXPECT_EQ(*devices("cuda:2,cuda:1"), (List{"cuda:2", "cuda:1"}));
  EXPECT_EQ(*devices("cuda,cuda:1"), (List{"cuda", "cuda:1"}));
  EXPECT_EQ(*devices("cpu,cpu"), (List{"cpu", "cpu"}));
  for (const char* bad : {"cuda:1,", "cuda:1,cuda:1", "cuda,cuda:0", "cpu,cuda:1", "cuda:1,cpu",
                          "auto,auto", "cuda:1,2", ","}) {
    const Status status = devices(bad).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad;
    EXPECT_TRUE(status.message().starts_with("--device: ")) << status.message();
  }
}

TEST(MakeBackend, RefusesAListOfDevices) {
  BackendOptions options;
  options.device = "cpu,cpu";
  EXPECT_EQ(MakeBackend(options).status().message(),
            "--device: 'cpu,cpu' names 2 devices; this runs on one");
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
