// WakeHandle: lets any thread wake a connection while that connection lives. Shared by the
// connection and everyone who may wake it; safe on any thread.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

namespace tandem::serve {

class WakeHandle {
 public:
  // `post` is called by Wake(), at most once between two calls of Taken(), and never after
  // Detach().
  explicit WakeHandle(std::function<void()> post) : post_(std::move(post)) {}

  void Wake() {
    const std::lock_guard lock(mutex_);
    if (post_ == nullptr || posted_) return;
    posted_ = true;
    post_();
  }
  // The connection has received the wake-up.
  void Taken() {
    const std::lock_guard lock(mutex_);
    posted_ = false;
  }
  void Detach() {
    const std::lock_guard lock(mutex_);
    post_ = nullptr;
  }

 private:
  std::mutex mutex_;
  std::function<void()> post_;  // guarded by mutex_; null once the connection is gone
  bool posted_ = false;         // guarded by mutex_; a wake-up is on its way
};

}  // namespace tandem::serve
