// PollExecutor: a few threads that poll calls when there is news for them, so that the thread that
// brings the news does no transport work. A call is queued at most once, which bounds the queue.
// Shared by the calls; every method may be called on any thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace tandem::serve {

class Polled {
 public:
  virtual ~Polled() = default;
  // Takes what there is. May be called by two threads at a time, and without news.
  virtual void Poll() = 0;

 private:
  friend class PollExecutor;
  std::atomic<bool> waits_{false};
};

class PollExecutor {
 public:
  explicit PollExecutor(int threads);
  // After Stop().
  ~PollExecutor();
  PollExecutor(const PollExecutor&) = delete;
  PollExecutor& operator=(const PollExecutor&) = delete;

  // Has Poll() called soon. Does nothing after Stop().
  void Schedule(std::shared_ptr<Polled> polled);
  // Ends the threads; on none of them.
  void Stop();

 private:
  void Run();

  Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<Polled>> waiting_ TANDEM_GUARDED_BY(mutex_);
  bool stopped_ TANDEM_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // touched by the constructor and Stop
};

}  // namespace tandem::serve
