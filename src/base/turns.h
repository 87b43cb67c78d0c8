// Turns: several threads share a device one at a time, in the order in which they ask. A plain
// mutex would let the one that works most have it again before those that wait wake up. Owned by
// whoever owns the device; any thread.
#pragma once

#include <cstdint>

#include "base/mutex.h"

namespace tandem {

class Turns {
 public:
  // Waits until everyone who asked before has given the turn back.
  void Take() {
    MutexLock lock(mutex_);
    const uint64_t own = next_++;
    given_back_.Wait(lock, [this, own]() TANDEM_REQUIRES(mutex_) { return current_ == own; });
  }
  void GiveBack() {
    {
      const MutexLock lock(mutex_);
      ++current_;
    }
    given_back_.NotifyAll();
  }
  // Those who wait for the turn that somebody has.
  uint64_t waiting() const {
    const MutexLock lock(mutex_);
    return next_ == current_ ? 0 : next_ - current_ - 1;
  }

 private:
  mutable Mutex mutex_;
  Condition given_back_;
  uint64_t next_ TANDEM_GUARDED_BY(mutex_) = 0;
  uint64_t current_ TANDEM_GUARDED_BY(mutex_) = 0;
};

// Holds a turn while it lives; without turns it does nothing.
class Turn {
 public:
  explicit Turn(Turns* turns) : turns_(turns) {
    if (turns_ != nullptr) turns_->Take();
  }
  ~Turn() {
    if (turns_ != nullptr) turns_->GiveBack();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Lets those who wait go first, between two pieces of long work.
  void Yield() const {
    if (turns_ == nullptr) return;
    turns_->GiveBack();
    turns_->Take();
  }

 private:
  Turns* const turns_;
};

}  // namespace tandem
