// WakeHandle: lets any thread wake a connection while that connection lives. Shared by the
// connection and everyone who may wake it; safe on any thread.
#pragma once

#include <functional>
#include <utility>

#include "base/mutex.h"

namespace tandem::serve {

class WakeHandle {
 public:
  // `post` is called by Wake(), at most once between two calls of Taken(), and never after
  // Detach().
  explicit WakeHandle(std::function<void()> post) : post_(std::move(post)) {}

  void Wake() {
    const MutexLock lock(mutex_);
    if (post_ == nullptr || posted_) return;
    posted_ = true;
    post_();
  }
  // The connection has received the wake-up.
  void Taken() {
    const MutexLock lock(mutex_);
    posted_ = false;
  }
  void Detach() {
    const MutexLock lock(mutex_);
    post_ = nullptr;
  }

 private:
  Mutex mutex_;
  // Null once the connection is gone.
  std::function<void()> post_ TANDEM_GUARDED_BY(mutex_);
  bool posted_ TANDEM_GUARDED_BY(mutex_) = false;  // a wake-up is on its way
};

}  // namespace tandem::serve
