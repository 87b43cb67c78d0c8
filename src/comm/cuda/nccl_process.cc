#include "comm/cuda/nccl_process.h"

#include <chrono>
#include <utility>

namespace tandem::cuda_ranks {
namespace {

// How often a process looks whether another one has left.
constexpr auto kLookTime = std::chrono::milliseconds(50);

}  // namespace

NcclComm::~NcclComm() {
  Abort();
  aborting_.join();
}

Status NcclComm::Look() {
  const MutexLock lock(mutex_);
  if (aborting_.joinable()) return {};
  int error = NcclLibrary::kSuccess;
  TANDEM_RETURN_IF_ERROR(nccl_.StatusOf(nccl_.async_error(comm_, &error), "NCCL's state"));
  return nccl_.StatusOf(error, "the connections of the ranks");
}

void NcclComm::Abort() {
  const MutexLock lock(mutex_);
  if (aborting_.joinable()) return;
  aborting_ = std::thread([this] { nccl_.abort(comm_); });
}

OwnProcess::OwnProcess(std::shared_ptr<Communicator> processes)
    : processes_(std::move(processes)), thread_([this] { Watch(); }) {}

OwnProcess::~OwnProcess() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void OwnProcess::Add(NcclComm* comm) {
  const MutexLock lock(mutex_);
  comms_.push_back(comm);
  if (failed()) comm->Abort();
}
void OwnProcess::Add(Communicator* local) {
  const MutexLock lock(mutex_);
  locals_.push_back(local);
  if (failed()) local->Fail(status_);
}
void OwnProcess::Remove(NcclComm* comm) {
  const MutexLock lock(mutex_);
  std::erase(comms_, comm);
}
void OwnProcess::Remove(Communicator* local) {
  const MutexLock lock(mutex_);
  std::erase(locals_, local);
}

void OwnProcess::Fail(const Status& why) {
  if (failing_.exchange(true)) return;  // also of what is told below
  const MutexLock lock(mutex_);
  status_ = why;
  failed_.store(true, std::memory_order_release);
  processes_->Fail(why);
  for (Communicator* const local : locals_) local->Fail(why);
  for (NcclComm* const comm : comms_) comm->Abort();
}

// A peer's kernels may end as soon as it has failed: whoever finds that asks here why.
Status OwnProcess::status() {
  if (!failed()) {
    if (const Status found = processes_->status(); !found.ok()) Fail(found);
  }
  const MutexLock lock(mutex_);
  return status_;
}

// A process that has left, or a connection that is lost, is found whatever the ranks wait for.
void OwnProcess::Watch() {
  for (;;) {
    Status found;
    {
      MutexLock lock(mutex_);
      if (changed_.WaitFor(lock, kLookTime, [this]() TANDEM_REQUIRES(mutex_) { return ends_; })) {
        return;
      }
      if (!status_.ok()) continue;
      found = processes_->status();
      for (NcclComm* const comm : comms_) {
        if (found.ok()) found = comm->Look();
      }
    }
    if (!found.ok()) Fail(found);
  }
}

}  // namespace tandem::cuda_ranks
