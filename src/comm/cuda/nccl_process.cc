#include "comm/cuda/nccl_process.h"

#include <chrono>
#include <utility>

namespace tandem::cuda_ranks {
namespace {

// How often a process looks whether another one has left.
constexpr auto kLookTime = std::chrono::milliseconds(50);
// For the others to find that this process has failed.
constexpr std::chrono::milliseconds kFarewell(250);
constexpr std::chrono::milliseconds kAtOnce(0);
// For a call of NCCL to return before its communicator is aborted. One that takes longer waits for
// the GPU, and returns at once when that has been freed.
constexpr auto kCallTime = std::chrono::milliseconds(300);

}  // namespace

NcclComm::~NcclComm() {
  Abort(kAtOnce);
  const MutexLock lock(mutex_);
  aborting_.join();
}

Status NcclComm::Look() {
  if (ends_.load()) return {};
  int error = NcclLibrary::kSuccess;
  TANDEM_RETURN_IF_ERROR(nccl_.StatusOf(nccl_.async_error(comm_, &error), "NCCL's state"));
  return nccl_.StatusOf(error, "the connections of the ranks");
}

void NcclComm::Abort(std::chrono::milliseconds after) {
  const MutexLock lock(mutex_);
  if (ends_.exchange(true)) return;
  aborting_ = std::thread([this, after] {
    std::this_thread::sleep_for(after);
    const auto end = std::chrono::steady_clock::now() + kCallTime;
    while (enqueues_.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    nccl_.abort(comm_);
  });
}

NcclProcess::NcclProcess(std::shared_ptr<Communicator> processes)
    : processes_(std::move(processes)), thread_([this] { Watch(); }) {}

NcclProcess::~NcclProcess() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

NcclComm& NcclProcess::Adopt(const NcclLibrary& nccl, NcclLibrary::Comm comm) {
  const MutexLock lock(mutex_);
  NcclComm& own = *comms_.emplace_back(std::make_unique<NcclComm>(nccl, comm));
  if (failed()) own.Abort(kAtOnce);
  return own;
}
void NcclProcess::Add(Communicator* local) {
  const MutexLock lock(mutex_);
  locals_.push_back(local);
  if (failed()) local->Fail(status_);
}
void NcclProcess::Remove(Communicator* local) {
  const MutexLock lock(mutex_);
  std::erase(locals_, local);
}

void NcclProcess::Fail(const Status& why) { Fail(why, kFarewell); }

void NcclProcess::Fail(const Status& why, std::chrono::milliseconds abort_after) {
  if (failing_.exchange(true)) return;  // also of what is told below
  const MutexLock lock(mutex_);
  status_ = why;
  failed_.store(true, std::memory_order_release);
  processes_->Fail(why);
  for (Communicator* const local : locals_) local->Fail(why);
  for (const auto& comm : comms_) comm->Abort(abort_after);
}

// A peer's kernels may end as soon as it has failed: whoever finds that asks here why.
Status NcclProcess::status() {
  if (!failed()) {
    const Status found = processes_->status();
    if (!found.ok()) {
      Fail(found, kAtOnce);
      return found;
    }
  }
  const MutexLock lock(mutex_);
  return status_;
}

// A process that has left, or a connection that is lost, is found whatever the ranks wait for.
void NcclProcess::Watch() {
  for (;;) {
    Status found;
    {
      MutexLock lock(mutex_);
      if (changed_.WaitFor(lock, kLookTime, [this]() TANDEM_REQUIRES(mutex_) { return ends_; })) {
        return;
      }
      if (!status_.ok()) continue;
      found = processes_->status();
      for (const auto& comm : comms_) {
        if (found.ok()) found = comm->Look();
      }
    }
    if (!found.ok()) Fail(found, kAtOnce);
  }
}

}  // namespace tandem::cuda_ranks
