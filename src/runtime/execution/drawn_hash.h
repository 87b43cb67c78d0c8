// DrawnHash: the hash of what a rank has drawn in a step, on its way to the thread of the engine.
// One thread puts, another one takes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace tandem {

class DrawnHash {
 public:
  // The one before has been taken: the leader lands a step only then.
  void Put(uint64_t hash) {
    const MutexLock lock(mutex_);
    hash_ = hash;
    changed_.NotifyAll();
  }
  // None will come any more.
  void Fail() {
    const MutexLock lock(mutex_);
    failed_ = true;
    changed_.NotifyAll();
  }

  // Waits for one; empty after Fail.
  std::optional<uint64_t> Take() {
    MutexLock lock(mutex_);
    changed_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return hash_.has_value() || failed_; });
    return std::exchange(hash_, std::nullopt);
  }
  // Waits for Fail; false after `timeout`.
  bool AwaitFailure(Nanos timeout) {
    MutexLock lock(mutex_);
    return changed_.WaitFor(lock, timeout, [this]() TANDEM_REQUIRES(mutex_) { return failed_; });
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::optional<uint64_t> hash_ TANDEM_GUARDED_BY(mutex_);
  bool failed_ TANDEM_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
