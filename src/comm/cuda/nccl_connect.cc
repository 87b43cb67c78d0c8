#include "comm/cuda/nccl_connect.cuh"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "base/mutex.h"

namespace tandem::cuda_ranks {
namespace {

using ops::cuda::CheckCuda;
using ops::cuda::Context;

constexpr auto kLookTime = std::chrono::milliseconds(5);

// The work of the thread that waits for the others, which may be left behind.
class Connecting {
 public:
  Connecting(const NcclLibrary& nccl, const NcclLibrary::UniqueId& id, int size, int first,
             std::span<const Context> contexts)
      : nccl_(nccl),
        id_(id),
        size_(size),
        first_(first),
        contexts_(contexts.begin(), contexts.end()) {}

  // Once, on that thread.
  void Run() {
    error_ = Init();
    done_.store(true, std::memory_order_release);
  }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Nobody waits for it any more: it uses no stream from then on, and the GPUs stop waiting.
  // Another thread.
  void Abandon() {
    const MutexLock lock(mutex_);
    abandoned_ = true;
    if (!made_) return;
    for (const NcclLibrary::Comm comm : comms_) nccl_.abort(comm);
  }
  // When it is done.
  Result<std::vector<NcclLibrary::Comm>> Comms() const {
    TANDEM_RETURN_IF_ERROR(nccl_.StatusOf(error_, "connecting the ranks"));
    return comms_;
  }

 private:
  int Init() {
    comms_.assign(contexts_.size(), nullptr);
    int error = Grouped([&](size_t i) {
      return nccl_.init_rank(&comms_[i], size_, id_, first_ + static_cast<int>(i));
    });
    if (error != NcclLibrary::kSuccess) return error;
    {
      const MutexLock lock(mutex_);
      if (abandoned_) return error;
      made_ = true;
    }
    return Connect();
  }

  // Every pair of ranks exchanges a byte: NCCL connects them at their first call, and a call that
  // waits for a process that has left could not be ended.
  int Connect() {
    std::vector<std::byte*> bytes(contexts_.size());
    for (size_t i = 0; i < contexts_.size(); ++i) {
      CheckCuda(cudaSetDevice(contexts_[i].device), "choosing the GPU");
      CheckCuda(cudaMalloc(&bytes[i], static_cast<size_t>(2 * size_)), "a rank's first bytes");
    }
    const int error = Grouped([&](size_t i) {
      int found = NcclLibrary::kSuccess;
      for (int peer = 0; peer < size_ && found == NcclLibrary::kSuccess; ++peer) {
        if (peer == first_ + static_cast<int>(i)) continue;
        found = nccl_.send(bytes[i], 1, NcclLibrary::kBytes, peer, comms_[i], contexts_[i].stream);
        if (found != NcclLibrary::kSuccess) break;
        found = nccl_.receive(bytes[i] + size_ + peer, 1, NcclLibrary::kBytes, peer, comms_[i],
                              contexts_[i].stream);
      }
      return found;
    });
    for (size_t i = 0; i < contexts_.size(); ++i) {
      CheckCuda(cudaSetDevice(contexts_[i].device), "choosing the GPU");
      CheckCuda(cudaStreamSynchronize(contexts_[i].stream), "the ranks' first bytes");
      cudaFree(bytes[i]);
    }
    return error;
  }

  // call(i) for each context, on its GPU and in one group of NCCL; the first error.
  template <typename Call>
  int Grouped(const Call& call) {
    return nccl_.Group([&] {
      int error = NcclLibrary::kSuccess;
      for (size_t i = 0; i < contexts_.size() && error == NcclLibrary::kSuccess; ++i) {
        CheckCuda(cudaSetDevice(contexts_[i].device), "choosing the GPU");
        error = call(i);
      }
      return error;
    });
  }

  const NcclLibrary& nccl_;
  const NcclLibrary::UniqueId id_;
  const int size_;
  const int first_;
  const std::vector<Context> contexts_;
  std::vector<NcclLibrary::Comm> comms_;
  int error_ = NcclLibrary::kSuccess;
  Mutex mutex_;
  bool made_ TANDEM_GUARDED_BY(mutex_) = false;  // comms_, which do not change then
  bool abandoned_ TANDEM_GUARDED_BY(mutex_) = false;
  std::atomic<bool> done_ = false;
};

}  // namespace

Result<std::vector<NcclLibrary::Comm>> ConnectNccl(const NcclLibrary& nccl,
                                                   const NcclLibrary::UniqueId& id, int size,
                                                   int first, std::span<const Context> contexts,
                                                   const Communicator& processes) {
  const auto connecting = std::make_shared<Connecting>(nccl, id, size, first, contexts);
  std::thread thread([connecting] { connecting->Run(); });
  while (!connecting->done()) {
    std::this_thread::sleep_for(kLookTime);
    if (const Status status = processes.status(); !status.ok()) {
      thread.detach();
      connecting->Abandon();
      return status;
    }
  }
  thread.join();
  TANDEM_RETURN_IF_ERROR(ops::cuda::TakeFailure());
  return connecting->Comms();
}

}  // namespace tandem::cuda_ranks
