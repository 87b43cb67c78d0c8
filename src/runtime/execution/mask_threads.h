// MaskThreads: the threads that run MaskJobs. Engine thread only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "runtime/execution/mask_job.h"

namespace tandem {

class MaskThreads {
 public:
  // Room for `max_jobs` jobs at once.
  explicit MaskThreads(size_t max_jobs);
  // Waits for the job that each thread is at.
  ~MaskThreads();

  // Starts jobs that have been asked; they are kept alive until they have ended.
  void Start(std::span<const std::shared_ptr<MaskJob>> jobs);
  // Wait until one of the jobs, or all, are not busy, or the time is up. Real time.
  void WaitForOne(std::span<const std::shared_ptr<MaskJob>> jobs, Nanos time);
  void WaitForAll(std::span<const std::shared_ptr<MaskJob>> jobs, Nanos time);

 private:
  void Work();

  Mutex mutex_;
  Condition posted_;
  Condition finished_;
  std::vector<std::shared_ptr<MaskJob>> queue_ TANDEM_GUARDED_BY(mutex_);
  bool ending_ TANDEM_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // none if the system gives none: Start runs the jobs
};

}  // namespace tandem
