#include "comm/cuda/stream_ranks.cuh"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "comm/cuda/collectives.cuh"
#include "comm/in_process.h"

namespace tandem::cuda_ranks {
namespace {

using ops::cuda::CheckCuda;
using ops::cuda::Context;

// Memory of one GPU that the others read and write. From a pool of its own:
// cudaDeviceEnablePeerAccess would map every allocation of the process on all GPUs, and make
// allocating and freeing on one of them wait for the kernels of the others.
class PeerMemory {
 public:
  PeerMemory() = default;
  ~PeerMemory() {
    cudaFree(data_);
    if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  }
  PeerMemory(PeerMemory&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
  PeerMemory& operator=(PeerMemory&&) = delete;

  // On the GPU of contexts[rank], which is the current one; zeroed. Null if that fails.
  static PeerMemory Allocate(std::span<const Context> contexts, size_t rank, size_t bytes);
  void* data() const { return data_; }

 private:
  cudaMemPool_t pool_ = nullptr;
  void* data_ = nullptr;
};

PeerMemory PeerMemory::Allocate(std::span<const Context> contexts, size_t rank, size_t bytes) {
  const Context& own = contexts[rank];
  PeerMemory memory;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = own.device;
  std::vector<cudaMemAccessDesc> access;
  for (const Context& peer : contexts) {
    if (peer.device == own.device) continue;
    cudaMemAccessDesc& one = access.emplace_back();
    one.location.type = cudaMemLocationTypeDevice;
    one.location.id = peer.device;
    one.flags = cudaMemAccessFlagsProtReadWrite;
  }
  cudaError_t error = cudaMemPoolCreate(&memory.pool_, &properties);
  if (error == cudaSuccess && !access.empty()) {
    error = cudaMemPoolSetAccess(memory.pool_, access.data(), access.size());
  }
  if (error == cudaSuccess) {
    error = cudaMallocFromPoolAsync(&memory.data_, bytes, memory.pool_, own.stream);
  }
  if (error == cudaSuccess) error = cudaMemsetAsync(memory.data_, 0, bytes, own.stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(own.stream);
  CheckCuda(error, "memory that the GPUs share");
  return memory;
}

// The first failure of any rank, of all stages. Any thread.
class SharedFailure {
 public:
  explicit SharedFailure(std::function<void(const Status& why)> on_failure)
      : on_failure_(std::move(on_failure)) {
    CheckCuda(cudaMallocHost(&stop_, sizeof(uint32_t)), "pinned memory");
    if (stop_ != nullptr) *stop_ = 0;
  }
  ~SharedFailure() { cudaFreeHost(stop_); }
  SharedFailure(const SharedFailure&) = delete;
  SharedFailure& operator=(const SharedFailure&) = delete;

  const uint32_t* stop() const { return stop_; }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void Fail(const Status& why) {
    {
      const MutexLock lock(mutex_);
      if (!status_.ok()) return;
      status_ = why;
      failed_.store(true, std::memory_order_release);
      std::atomic_ref(*stop_).store(1, std::memory_order_release);
    }
    if (on_failure_) on_failure_(why);
  }
  Status status() const {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  const std::function<void(const Status& why)> on_failure_;
  uint32_t* stop_ = nullptr;  // pinned: the waiting kernels look at it
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  Status status_ TANDEM_GUARDED_BY(mutex_);
};

// What ranks share that compute together. Freed by the last one, when no rank's kernels run any
// more.
class Meeting {
 public:
  explicit Meeting(std::shared_ptr<SharedFailure> failure) : failure_(std::move(failure)) {}

  // What the ranks' kernels use; its failure, if any.
  Status Prepare(std::span<const Context> contexts);
  Links LinksOf(int rank) const {
    Links links = links_;
    links.rank = rank;
    return links;
  }
  SharedFailure& failure() const { return *failure_; }

 private:
  const std::shared_ptr<SharedFailure> failure_;
  std::vector<PeerMemory> memory_;
  Links links_{};  // of no rank
};

Status Meeting::Prepare(std::span<const Context> contexts) {
  TANDEM_RETURN_IF_ERROR(ops::cuda::TakeFailure());
  links_.stop = failure_->stop();
  links_.size = static_cast<int>(contexts.size());
  links_.max_blocks = kMaxBlocks;
  memory_.reserve(contexts.size());
  for (size_t rank = 0; rank < contexts.size(); ++rank) {
    CheckCuda(cudaSetDevice(contexts[rank].device), "choosing the GPU");
    memory_.push_back(PeerMemory::Allocate(contexts, rank, RankMemory::Bytes(links_.size)));
    links_.memory[rank] = static_cast<RankMemory*>(memory_.back().data());
    links_.max_blocks = std::min(links_.max_blocks, kBlocksPerSm * contexts[rank].num_sms);
    LoadOneShot(links_.size);
    LoadTwoShot(links_.size);
    LoadAllReduceNorm(links_.size);
    LoadGather();
    LoadSendAndReceive();
    TANDEM_RETURN_IF_ERROR(ops::cuda::TakeFailure().Annotate(
        fmt::format("GPU {} as rank {}", contexts[rank].device, rank)));
  }
  return {};
}

// From about this size on, two-shot is faster.
int64_t OneShotBytes(int ranks) {
  if (ranks <= 2) return int64_t{1536} << 10;
  return ranks <= 4 ? int64_t{384} << 10 : int64_t{128} << 10;
}

class StreamRank final : public Communicator {
 public:
  // `host`: the same rank, for what lies in the host's memory. `stage`: among the ranks of its
  // stage; null where there is one.
  StreamRank(std::shared_ptr<Meeting> meeting, std::shared_ptr<Communicator> host, int rank,
             const Context& context, const StreamRanksOptions& options,
             std::unique_ptr<Communicator> stage = nullptr)
      : meeting_(std::move(meeting)),
        host_(std::move(host)),
        links_(meeting_->LinksOf(rank)),
        context_(context),
        one_shot_bytes_(options.one_shot_bytes.value_or(OneShotBytes(links_.size))),
        stage_(std::move(stage)) {}
  // Its kernels end, because none waits for a peer any more.
  ~StreamRank() override {
    Fail(Unavailable(fmt::format("rank {} has left", links_.rank)));
    cudaStreamSynchronize(context_.stream);
  }
  StreamRank(const StreamRank&) = delete;
  StreamRank& operator=(const StreamRank&) = delete;

  int rank() const override { return links_.rank; }
  int size() const override { return links_.size; }
  Communicator& stage() override { return stage_ == nullptr ? *this : *stage_; }

  void AllReduce(const Tensor& rows) override {
    if (size() == 1 || rows.NumElements() == 0 || failed()) return;
    if (rows.NumBytes() <= one_shot_bytes_) {
      EnqueueOneShot(context_, links_, rows);
    } else {
      EnqueueTwoShot(context_, links_, rows);
    }
  }
  // Only for one-shot sizes: a small step is bound by its number of kernels.
  bool AllReduceAddNorm(const ops::NormedRows& x) override {
    if (size() == 1 || x.delta.NumElements() == 0 || x.delta.NumBytes() > one_shot_bytes_) {
      return false;
    }
    return failed() || EnqueueAllReduceNorm(context_, links_, x);
  }
  void GatherColumns(const Tensor& part, const Tensor& all) override {
    TANDEM_CHECK(part.dim(0) == all.dim(0), "a part has other rows");
    if (part.NumElements() == 0 || failed()) return;
    EnqueueGather(context_, links_, part, all);
  }

  void Send(const Tensor& rows, int to) override {
    if (rows.NumElements() == 0 || failed()) return;
    EnqueueSend(context_, links_, rows, to);
  }
  void Receive(const Tensor& rows, int from) override {
    if (rows.NumElements() == 0 || failed()) return;
    EnqueueReceive(context_, links_, rows, from);
  }

  void Broadcast(std::span<std::byte> bytes) override { host_->Broadcast(bytes); }

  void Fail(const Status& why) override {
    meeting_->failure().Fail(why);
    host_->Fail(why);
  }
  Status status() const override { return meeting_->failure().status(); }

 private:
  bool failed() const { return meeting_->failure().failed(); }

  const std::shared_ptr<Meeting> meeting_;
  const std::shared_ptr<Communicator> host_;
  const Links links_;
  const Context context_;
  const int64_t one_shot_bytes_;
  const std::unique_ptr<Communicator> stage_;
};

Status CheckGpus(std::span<const Context> contexts) {
  if (contexts.empty() || contexts.size() > kMaxRanks) {
    return InvalidArgument(
        fmt::format("{} GPUs as ranks; there can be 1 to {}", contexts.size(), kMaxRanks));
  }
  for (const Context& one : contexts) {
    for (const Context& other : contexts) {
      if (&one == &other) continue;
      if (one.device == other.device) {
        return InvalidArgument(fmt::format("GPU {} is two ranks at once", one.device));
      }
      int can = 0;
      CheckCuda(cudaDeviceCanAccessPeer(&can, one.device, other.device), "the GPUs' links");
      if (can == 0) {
        return FailedPrecondition(
            fmt::format("GPU {} cannot read the memory of GPU {}", one.device, other.device));
      }
    }
  }
  return {};
}

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> MakeStreamRanks(
    std::span<const Context> contexts, const StreamRanksOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckGpus(contexts));
  const auto size = static_cast<int>(contexts.size());
  const Stages& stages = options.stages;
  TANDEM_CHECK(stages.Divide(size), "stages with different numbers of ranks");
  const CurrentGpu restored;
  const auto failure = std::make_shared<SharedFailure>(options.on_failure);
  const auto meeting = std::make_shared<Meeting>(failure);
  TANDEM_RETURN_IF_ERROR(meeting->Prepare(contexts));
  std::vector<std::unique_ptr<Communicator>> hosts = MakeInProcessRanks(size, stages);
  std::vector<std::unique_ptr<Communicator>> ranks;
  std::shared_ptr<Meeting> stage_meeting;
  for (int rank = 0; rank < size; ++rank) {
    const Context& context = contexts[static_cast<size_t>(rank)];
    const std::shared_ptr<Communicator> host = std::move(hosts[static_cast<size_t>(rank)]);
    std::unique_ptr<Communicator> stage;
    if (!stages.IsOne()) {
      const Stages::Range own = stages.Of(rank, size);
      if (rank == own.first) {
        stage_meeting = std::make_shared<Meeting>(failure);
        TANDEM_RETURN_IF_ERROR(stage_meeting->Prepare(
            contexts.subspan(static_cast<size_t>(rank), static_cast<size_t>(own.size))));
      }
      stage = std::make_unique<StreamRank>(stage_meeting,
                                           std::shared_ptr<Communicator>(host, &host->stage()),
                                           rank - own.first, context, options);
    }
    ranks.push_back(
        std::make_unique<StreamRank>(meeting, host, rank, context, options, std::move(stage)));
  }
  return ranks;
}

}  // namespace tandem::cuda_ranks
