#include "runtime/execution/mask_threads.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/cores.h"

namespace tandem {
namespace {

// A grammar's mask for 131,072 tokens takes some 20 us, at times a hundred times as long: 32 such
// sequences on an H100 decode 1.5 times as fast with 16 threads as with 8.
constexpr int kMaxThreads = 16;

}  // namespace

MaskThreads::MaskThreads(size_t max_jobs) {
  queue_.reserve(max_jobs);
  try {
    for (int i = 0; i < std::min(AvailableCores(), kMaxThreads); ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  } catch (const std::system_error&) {
    // Those that there are do the work.
  }
}

MaskThreads::~MaskThreads() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  posted_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::Start(std::span<const std::shared_ptr<MaskJob>> jobs) {
  if (threads_.empty()) {
    for (const std::shared_ptr<MaskJob>& job : jobs) {
      job->Run();
      job->Finish();
    }
    return;
  }
  {
    const MutexLock lock(mutex_);
    queue_.insert(queue_.end(), jobs.begin(), jobs.end());
  }
  if (jobs.size() == 1) {
    posted_.NotifyOne();
  } else {
    posted_.NotifyAll();
  }
}

void MaskThreads::WaitForOne(std::span<const std::shared_ptr<MaskJob>> jobs, Nanos time) {
  MutexLock lock(mutex_);
  finished_.WaitFor(lock, time, [&] { return !std::ranges::all_of(jobs, &MaskJob::busy); });
}

void MaskThreads::WaitForAll(std::span<const std::shared_ptr<MaskJob>> jobs, Nanos time) {
  MutexLock lock(mutex_);
  finished_.WaitFor(lock, time, [&] { return std::ranges::none_of(jobs, &MaskJob::busy); });
}

void MaskThreads::Work() {
  BindToAllCores();  // the engine's thread may be bound to one
  while (true) {
    std::shared_ptr<MaskJob> job;
    {
      MutexLock lock(mutex_);
      posted_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return ending_ || !queue_.empty(); });
      if (ending_) return;
      job = std::move(queue_.front());
      queue_.erase(queue_.begin());
    }
    job->Run();
    job->Finish();
    {
      const MutexLock lock(mutex_);
    }  // who has seen it busy is asleep now, and hears of the end
    finished_.NotifyOne();
  }
}

}  // namespace tandem
