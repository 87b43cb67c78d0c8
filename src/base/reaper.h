// Reaper: ends objects on a thread of its own, so that whoever gives up an object whose end takes
// long does not wait for it. Owned by whoever makes the objects, and outlives them; every method
// may be called on any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace tandem {

class Reaper {
 public:
  Reaper() : thread_([this] { Run(); }) {}
  // Waits until everything that was given up has ended.
  ~Reaper() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  // The object, which ends here after the last of its new owners has given it up. `object` is its
  // only owner before.
  template <typename Object>
  std::shared_ptr<Object> Own(std::shared_ptr<Object> object) {
    Object* const owned = object.get();
    return std::shared_ptr<Object>(
        owned, [this, last = std::move(object)](Object*) mutable { Take(std::move(last)); });
  }

  // Waits until everything that was given up before has ended.
  void Await() {
    MutexLock lock(mutex_);
    const uint64_t before = taken_;
    changed_.Wait(lock, [this, before]() TANDEM_REQUIRES(mutex_) { return ended_ >= before; });
  }

 private:
  void Take(std::shared_ptr<void> object) {
    {
      const MutexLock lock(mutex_);
      waiting_.push_back(std::move(object));
      ++taken_;
    }
    changed_.NotifyAll();
  }

  void Run() {
    while (std::shared_ptr<void> object = Next()) {
      object.reset();
      const MutexLock lock(mutex_);
      ++ended_;
      changed_.NotifyAll();
    }
  }

  // Waits for an object; null at the end.
  std::shared_ptr<void> Next() {
    MutexLock lock(mutex_);
    changed_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return nullptr;
    std::shared_ptr<void> object = std::move(waiting_.front());
    waiting_.pop_front();
    return object;
  }

  Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<void>> waiting_ TANDEM_GUARDED_BY(mutex_);  // each was owned here
  uint64_t taken_ TANDEM_GUARDED_BY(mutex_) = 0;
  uint64_t ended_ TANDEM_GUARDED_BY(mutex_) = 0;
  bool stop_ TANDEM_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace tandem
