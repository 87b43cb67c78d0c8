// DeviceSlots: how sequences enter and leave slots in backend memory. A start is one patch: built
// in pinned memory, copied, and spread out by a kernel, all enqueued. The pinned memory of patches
// is reused once the results of the step after them have arrived. A patch can hold any legal
// request (a prompt of max_seq_len, kMaxListValues values of lists), so a start never allocates; it
// waits for the device only if the patches before one step exceed the pinned memory for them. Owned
// and used by the executor.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "runtime/execution/device_memory.h"
#include "runtime/execution/executor.h"

namespace tandem {

class DeviceSlots {
 public:
  static Result<std::unique_ptr<DeviceSlots>> Create(const DeviceMemory& memory,
                                                     ops::Backend& backend, int32_t max_launched);
  // `step`: the next step to be launched; the results of the step max_launched before it have
  // arrived. The error is the device's failure.
  Status Add(uint64_t step, int32_t slot, const SlotInit& init);
  void Remove(int32_t slot);
  int64_t pinned_bytes() const;

 private:
  DeviceSlots(const DeviceMemory& memory, ops::Backend& backend, int32_t max_launched);
  Result<std::byte*> TakePinned(uint64_t step, size_t bytes);
  static void PlaceLists(const int32_t* base, const SlotInit& init, ops::SlotSampling& sampling);

  const DeviceMemory& memory_;
  ops::Backend& backend_;
  struct Arena {
    Buffer pinned;
    uint64_t step = 0;  // the step whose patches it holds
    size_t used = 0;    // bytes
  };
  std::vector<Arena> arenas_;  // a ring: one for each step that may be launched at once
};

}  // namespace tandem
