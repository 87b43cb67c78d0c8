// The device of a session, as the options name it, and what the sessions of one process share of
// each device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bound_options.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/turns.h"
#include "ops/backend.h"

namespace tandem::apps {

struct BackendOptions {
  std::string device = "auto";  // or several between commas, one for each rank
  ops::CudaOptions cuda;
  ops::CpuOptions cpu;
};

const BoundOptions<BackendOptions>& BackendOptionRows();

// One of `parts` equal shares of the CPU's threads, and of the cores that they are pinned to.
ops::CpuOptions ShareOf(const ops::CpuOptions& cpu, int parts, int index);

// INVALID_ARGUMENT for more threads than the cores can run side by side.
Status CheckThreads(const BackendOptions& options);
// Whether the first device is a CPU.
bool IsOnCpu(const BackendOptions& options);
// The devices of the ranks, at least one. INVALID_ARGUMENT unless several are all `cpu`, or
// different GPUs by their numbers.
Result<std::vector<std::string>> DevicesOf(const BackendOptions& options);
// Likewise of another option's value.
Result<std::vector<std::string>> ListDevices(std::string_view text, std::string_view option);
// The numbers of GPUs; 0 for auto. INVALID_ARGUMENT names the option whose value it is.
Result<std::vector<int>> GpusOf(const std::vector<std::string>& devices, std::string_view option);
// How many ranks fit beside each other: the devices that are listed, GPUs from the one named on, or
// cores.
Result<int32_t> NumPlaces(const BackendOptions& options);
// INVALID_ARGUMENT where several devices are named.
Result<std::unique_ptr<ops::Backend>> MakeBackend(const BackendOptions& options);

// SharedDevices: engines on one device take turns; those on others never wait for them. On a CPU
// the replicas of a model are each on a device of its own, their share of the threads. Any thread.
class SharedDevices {
 public:
  // The backend of one more engine, which is the replica of this number. On a CPU it is the one
  // that the first engine of that number with as many threads made, with those; on a GPU each
  // engine has a backend of its own.
  Result<std::shared_ptr<ops::Backend>> BackendFor(const BackendOptions& options,
                                                   int32_t replica = 0);

  // The turns of all engines on that device.
  std::shared_ptr<Turns> TurnsOf(Device device, int32_t replica = 0);

 private:
  Mutex mutex_;
  // By replica and number of threads.
  std::map<std::pair<int32_t, int>, std::shared_ptr<ops::Backend>> cpus_ TANDEM_GUARDED_BY(mutex_);
  // By kind and, of a GPU, its number; of the CPU that of the replica.
  std::map<std::pair<Device::Kind, int>, std::shared_ptr<Turns>> turns_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::apps
