// The compute threads of one backend: ParallelFor splits an index range over them and the caller.
// Workers are pinned one to a core (when there is more than one and pinning is asked for), spin
// briefly for the next task and then sleep, because server threads share the cores.
// Owned by the backend; Run and ParallelFor are called from one thread at a time. Nothing allocates
// after construction.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace tandem {

class ThreadPool {
 public:
  // `num_threads` includes the caller: 1 starts no thread; 0 means one per core of this process.
  // Threads are pinned from the core `first_core` of the process on, which pools side by side
  // choose so that they share none. When the system refuses a thread, throws std::system_error and
  // leaves no thread running.
  explicit ThreadPool(int num_threads, bool pin = true, int first_core = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Where the workers are pinned, pins the calling thread to the core that they left to the caller.
  // Otherwise, each time it has slept, the kernel may wake it on a worker's core, and every task
  // waits for the two in turn until it is moved: masks of grammars cost 16 cores a fifth of their
  // speed in that way. Threads that it starts afterwards are for BindToAllCores.
  void BindCaller() const;

  // Calls fn(thread_index) once on every thread, including the caller as index 0; returns when all
  // are done.
  template <typename Fn>
  void Run(Fn&& fn) {
    using Decayed = std::remove_reference_t<Fn>;
    RunErased([](void* context, int thread) { (*static_cast<Decayed*>(context))(thread); },
              const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Calls fn(begin, end) over disjoint pieces of [0, count), each a multiple of `grain` long except
  // the last; pieces are assigned to threads statically, so the same call always splits the same
  // way.
  template <typename Fn>
  void ParallelFor(int64_t count, int64_t grain, Fn&& fn) {
    const int64_t pieces = (count + grain - 1) / grain;
    if (pieces <= 1 || num_threads_ == 1) {
      if (count > 0) fn(int64_t{0}, count);
      return;
    }
    Run([&](int thread) {
      const int64_t begin = pieces * thread / num_threads_ * grain;
      const int64_t end = std::min(pieces * (thread + 1) / num_threads_ * grain, count);
      if (begin < end) fn(begin, end);
    });
  }

 private:
  using Task = void (*)(void* context, int thread);
  void RunErased(Task task, void* context);
  void WorkerLoop(int thread);
  void Stop();

  const int num_threads_;
  const int first_core_;
  const bool binds_;
  std::vector<std::thread> workers_;

  Task task_ = nullptr;                         // written by the caller before epoch_ moves
  void* context_ = nullptr;                     // as task_
  alignas(64) std::atomic<uint64_t> epoch_{0};  // increased by one for every task
  alignas(64) std::atomic<int> running_{0};     // workers that have not finished this task
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace tandem
