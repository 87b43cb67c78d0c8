#include "base/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

namespace tandem {
namespace {

// Long enough to bridge two ops of one layer, short enough not to starve a server thread.
constexpr auto kSpin = std::chrono::microseconds(50);

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

void PinCurrentThread(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a refusal only costs speed
}

}  // namespace

int AvailableCores() { return static_cast<int>(AllowedCores().size()); }

ThreadPool::ThreadPool(int num_threads, bool pin)
    : num_threads_(num_threads > 0 ? num_threads : AvailableCores()) {
  const std::vector<int> cores = AllowedCores();
  try {
    for (int thread = 1; thread < num_threads_; ++thread) {
      workers_.emplace_back([this, thread, pin, cores] {
        // More threads than cores would compete for the same core: leave them to the kernel.
        if (pin && num_threads_ <= static_cast<int>(cores.size())) {
          PinCurrentThread(cores[static_cast<size_t>(thread)]);
        }
        WorkerLoop(thread);
      });
    }
  } catch (...) {  // the system gives no more threads
    Stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { Stop(); }

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
