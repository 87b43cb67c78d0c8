#include "base/thread_pool.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

#include "base/cores.h"

namespace tandem {
namespace {

// Long enough to bridge two ops of one layer, short enough not to starve a server thread.
constexpr auto kSpin = std::chrono::microseconds(50);

}  // namespace

ThreadPool::ThreadPool(int num_threads, bool pin, int first_core)
    : num_threads_(num_threads > 0 ? num_threads : AvailableCores()),
      first_core_(first_core),
      // More threads than cores would compete for the same core: leave them to the kernel.
      binds_(pin && num_threads_ > 1 && first_core + num_threads_ <= AvailableCores()) {
  try {
    for (int thread = 1; thread < num_threads_; ++thread) {
      workers_.emplace_back([this, thread] {
        if (binds_) BindToCore(AllowedCores()[static_cast<size_t>(first_core_ + thread)]);
        WorkerLoop(thread);
      });
    }
  } catch (...) {  // the system gives no more threads
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::BindCaller() const {
  if (binds_) BindToCore(AllowedCores()[static_cast<size_t>(first_core_)]);
}

void ThreadPool::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunErased(Task task, void* context) {
  if (num_threads_ == 1) {
    task(context, 0);
    return;
  }
  task_ = task;
  context_ = context;
  running_.store(num_threads_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1);  // sequentially consistent with sleeping_: no wake-up is lost
  if (sleeping_.load() > 0) {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  task(context, 0);
  int spins = 0;
  while (running_.load(std::memory_order_acquire) > 0) {
    _mm_pause();
    // A worker that lost its core needs ours to finish.
    if (++spins > 4096) {
      std::this_thread::yield();
      spins = 0;
    }
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint64_t seen = 0;
  for (;;) {
    auto spin_until = std::chrono::steady_clock::now() + kSpin;
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen && !stop_.load()) {
      _mm_pause();
      if (++spins < 64) continue;
      spins = 0;
      if (std::chrono::steady_clock::now() < spin_until) continue;
      std::unique_lock lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return epoch_.load() != seen || stop_.load(); });
      --sleeping_;
    }
    if (stop_.load()) return;
    seen = epoch_.load(std::memory_order_acquire);
    task_(context_, thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace tandem
