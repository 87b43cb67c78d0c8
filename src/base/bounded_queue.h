// A FIFO with a fixed capacity between threads. TryPush returns false when it is full: the caller
// decides what that means (a 429, a coalesced event). Any number of producers and consumers.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace tandem {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `value` is then untouched.
  bool TryPush(T&& value) {
    {
      const MutexLock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    ready_.NotifyOne();
    return true;
  }

  std::optional<T> TryPop() {
    const MutexLock lock(mutex_);
    return PopLocked();
  }

  // Waits for an item; empty when the queue is closed and empty.
  std::optional<T> Pop() {
    MutexLock lock(mutex_);
    ready_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return closed_ || !items_.empty(); });
    return PopLocked();
  }

  // Wakes every waiter; queued items can still be popped.
  void Close() {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    ready_.NotifyAll();
  }

  size_t size() const {
    const MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  std::optional<T> PopLocked() TANDEM_REQUIRES(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> value(std::move(items_.front()));
    items_.pop_front();
    return value;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  Condition ready_;
  std::deque<T> items_ TANDEM_GUARDED_BY(mutex_);
  bool closed_ TANDEM_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem
