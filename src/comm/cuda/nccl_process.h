// The ranks of NCCL in one process, and how they end: the first failure, wherever it is found, ends
// what any of them waits for. Used only in comm/cuda.
#pragma once

#include <atomic>
#include <chrono>
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
  // Waits until NCCL has ended it, which needs all graphs with calls of this process's ranks
  // destroyed.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // enqueue(nccl, comm) returns an error of NCCL. Nothing is enqueued once it was aborted.
  template <typename Enqueue>
  Status Do(const char* what, const Enqueue& enqueue) {
    enqueues_.store(true);
    Status done;
    if (!ends_.load()) done = nccl_.StatusOf(enqueue(nccl_, comm_), what);
    enqueues_.store(false);
    return done;
  }
  // An error that NCCL has met after the calls returned: of the network. Not beside Abort.
  Status Look();
  // Ends the kernels that wait for another rank, `after` some time. NCCL returns from this only
  // when the graphs that hold its kernels have been destroyed, so a thread of its own waits for
  // that. Any thread; it does not wait for Do, which may itself wait until those kernels have
  // ended: for room in the GPU's queue.
  void Abort(std::chrono::milliseconds after);

 private:
  const NcclLibrary& nccl_;
  const NcclLibrary::Comm comm_;
  std::atomic<bool> enqueues_ = false;
  std::atomic<bool> ends_ = false;
  Mutex mutex_;
  std::thread aborting_ TANDEM_GUARDED_BY(mutex_);
};

// What the ranks of this process share: the other processes, the first failure, and the
// communicators of NCCL, which end together: NCCL may wait for the graphs of all of them when it
// ends one.
class NcclProcess {
 public:
  explicit NcclProcess(std::shared_ptr<Communicator> processes);
  ~NcclProcess();
  NcclProcess(const NcclProcess&) = delete;
  NcclProcess& operator=(const NcclProcess&) = delete;

  // Lives as long as this object. A failure aborts it.
  NcclComm& Adopt(const NcclLibrary& nccl, NcclLibrary::Comm comm);
  // A failure fails it too, until it is removed, which waits for a failure that is at it.
  void Add(Communicator* local);
  void Remove(Communicator* local);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Any thread; the first call counts. The other processes end what they wait for before this one
  // frees the memory that their kernels may still read.
  void Fail(const Status& why);
  // The first failure, of another process too. Any thread.
  Status status();

 private:
  void Fail(const Status& why, std::chrono::milliseconds abort_after);
  void Watch();

  const std::shared_ptr<Communicator> processes_;
  std::atomic<bool> failing_ = false;
  std::atomic<bool> failed_ = false;  // status_ is there
  mutable Mutex mutex_;
  Condition changed_;
  bool ends_ TANDEM_GUARDED_BY(mutex_) = false;
  Status status_ TANDEM_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<NcclComm>> comms_ TANDEM_GUARDED_BY(mutex_);
  std::vector<Communicator*> locals_ TANDEM_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::cuda_ranks
