// Mutex, MutexLock and Condition: std::mutex, its lock and its condition variable, with names for
// Clang's thread-safety analysis. A member marked TANDEM_GUARDED_BY(mutex_) is touched only with
// the lock held, a function marked TANDEM_REQUIRES(mutex_) called only then; clang-tidy reports any
// other use in `./check --full`. Other compilers see the plain types.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#ifdef __clang__
#define TANDEM_THREAD_ANNOTATION_(x) __attribute__((x))
#else
#define TANDEM_THREAD_ANNOTATION_(x)
#endif

#define TANDEM_GUARDED_BY(mutex) TANDEM_THREAD_ANNOTATION_(guarded_by(mutex))
// For the predicate of a wait too: `[this]() TANDEM_REQUIRES(mutex_) { return !items_.empty(); }`.
#define TANDEM_REQUIRES(mutex) TANDEM_THREAD_ANNOTATION_(requires_capability(mutex))

namespace tandem {

class TANDEM_THREAD_ANNOTATION_(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex while it lives.
class TANDEM_THREAD_ANNOTATION_(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TANDEM_THREAD_ANNOTATION_(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() TANDEM_THREAD_ANNOTATION_(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

class Condition {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

  // Releases the lock while it waits for a notification; may also return without one.
  void Wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // Releases the lock while it waits until ready() returns true; ready() is called with the lock
  // held.
  template <typename Ready>
  void Wait(MutexLock& lock, Ready ready) {
    condition_.wait(lock.lock_, std::move(ready));
  }
  // Likewise for at most `timeout`; returns ready().
  template <typename Ready>
  bool WaitFor(MutexLock& lock, std::chrono::nanoseconds timeout, Ready ready) {
    return condition_.wait_for(lock.lock_, timeout, std::move(ready));
  }

 private:
  std::condition_variable condition_;
};

}  // namespace tandem
