// Worker: one thread that runs tasks in order, or several that begin them in order, for work that
// would hold up a server's thread. Owned by whoever makes the tasks; every method may be called on
// any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"

namespace tandem::serve {

class Worker {
 public:
  // `max_waiting`: tasks that wait; further ones are refused.
  explicit Worker(size_t max_waiting, int num_threads = 1) : tasks_(max_waiting) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  // Waits for the tasks that run; those that wait are dropped.
  ~Worker() {
    stop_ = true;
    tasks_.Close();
    for (std::thread& thread : threads_) thread.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // False when too many tasks wait.
  bool TryRun(std::function<void()> task) { return tasks_.TryPush(std::move(task)); }

 private:
  void Run() {
    while (!stop_) {
      if (auto task = tasks_.Pop()) (*task)();
    }
  }

  BoundedQueue<std::function<void()>> tasks_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;  // last: they use the other members
};

}  // namespace tandem::serve
