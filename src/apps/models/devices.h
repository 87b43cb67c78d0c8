// The device of a session, as the options name it, and what the sessions of one process share of
// each device.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/bound_options.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/turns.h"
#include "ops/backend.h"

namespace tandem::apps {

struct BackendOptions {
  std::string device = "auto";
  ops::CudaOptions cuda;
  ops::CpuOptions cpu;
};

const BoundOptions<BackendOptions>& BackendOptionRows();

// Whether they name the CPU, or no GPU where there is none.
bool IsCpu(const BackendOptions& options);
// INVALID_ARGUMENT for more threads than the cores can run side by side.
Status CheckThreads(const BackendOptions& options);
Result<std::unique_ptr<ops::Backend>> MakeBackend(const BackendOptions& options);

// SharedDevices: engines on one device take turns; those on others never wait for them. Any thread.
class SharedDevices {
 public:
  // The backend of one more engine. On a CPU it is the one that the first engine made, with its
  // threads; on a GPU each engine has a backend of its own.
  Result<std::shared_ptr<ops::Backend>> BackendFor(const BackendOptions& options);

  // The turns of all engines on that device.
  std::shared_ptr<Turns> TurnsOf(Device device);

 private:
  Mutex mutex_;
  std::shared_ptr<ops::Backend> cpu_ TANDEM_GUARDED_BY(mutex_);
  std::map<std::pair<Device::Kind, int>, std::shared_ptr<Turns>> turns_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::apps
