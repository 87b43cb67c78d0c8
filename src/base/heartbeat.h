// Heartbeat: the time of the last progress, which tells long work from work that hangs. Beat() on
// the threads that work, Age() on any; the clock outlives it.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace tandem {

class Heartbeat {
 public:
  explicit Heartbeat(const Clock& clock) : clock_(clock), last_ns_(clock.Now().count()) {}

  // Costs one reading of the clock and one relaxed store.
  void Beat() { last_ns_.store(clock_.Now().count(), std::memory_order_relaxed); }
  // Time since the last beat.
  Nanos Age() const { return clock_.Now() - Nanos(last_ns_.load(std::memory_order_relaxed)); }

 private:
  const Clock& clock_;
  std::atomic<int64_t> last_ns_;
};

}  // namespace tandem
