// The ranks of NCCL in one process, and how they end: the first failure, wherever it is found, ends
// what any of them waits for. Used only in comm/cuda.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/nccl_library.h"

namespace tandem::cuda_ranks {

// A rank's communicator of NCCL, until the first failure. Its thread enqueues; others abort.
class NcclComm {
 public:
  NcclComm(const NcclLibrary& nccl, NcclLibrary::Comm comm) : nccl_(nccl), comm_(comm) {}
  // Whatever recorded its calls has been destroyed.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // enqueue(nccl, comm) returns an error of NCCL. Nothing is enqueued once it was aborted.
  template <typename Enqueue>
  Status Do(const char* what, const Enqueue& enqueue) {
    const MutexLock lock(mutex_);
    if (aborting_.joinable()) return {};
    return nccl_.StatusOf(enqueue(nccl_, comm_), what);
  }
  // An error that NCCL has met after the calls returned: of the network.
  Status Look();
  // Ends the kernels that wait for another rank. NCCL returns from this only when the graphs that
  // hold its kernels have been destroyed, so a thread of its own waits for that. Any thread.
  void Abort();

 private:
  const NcclLibrary& nccl_;
  const NcclLibrary::Comm comm_;
  Mutex mutex_;
  std::thread aborting_;  // started under the mutex
};

// What the ranks of this process share: the other processes, and the first failure.
class OwnProcess {
 public:
  explicit OwnProcess(std::shared_ptr<Communicator> processes);
  ~OwnProcess();
  OwnProcess(const OwnProcess&) = delete;
  OwnProcess& operator=(const OwnProcess&) = delete;

  // What a failure ends: a communicator of NCCL, and one among the ranks of this process. Until
  // they are removed, which waits for a failure that is at them.
  void Add(NcclComm* comm);
  void Add(Communicator* local);
  void Remove(NcclComm* comm);
  void Remove(Communicator* local);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Any thread; the first call counts.
  void Fail(const Status& why);
  // The first failure, of another process too. Any thread.
  Status status();

 private:
  void Watch();

  const std::shared_ptr<Communicator> processes_;
  std::atomic<bool> failing_ = false;
  std::atomic<bool> failed_ = false;  // status_ is there
  mutable Mutex mutex_;
  Condition changed_;
  bool ends_ TANDEM_GUARDED_BY(mutex_) = false;
  Status status_ TANDEM_GUARDED_BY(mutex_);
  std::vector<NcclComm*> comms_ TANDEM_GUARDED_BY(mutex_);
  std::vector<Communicator*> locals_ TANDEM_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::cuda_ranks
