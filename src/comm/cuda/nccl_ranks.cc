// GPUs of several processes as ranks. NCCL only carries bytes: what is received is put together by
// our own kernels (received_parts.cuh), so that sums have the bits that the ranks of one process
// give them.
#include "comm/cuda/nccl_ranks.cuh"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "comm/cuda/nccl_connect.cuh"
#include "comm/cuda/nccl_process.h"
#include "comm/cuda/received_parts.cuh"
#include "comm/cuda/stream_ranks.cuh"
#include "comm/in_process.h"
#include "comm/nccl_library.h"

namespace tandem::cuda_ranks {
namespace {

using ops::cuda::CeilDiv;
using ops::cuda::CheckCuda;
using ops::cuda::Context;

// Of each rank, for what it receives.
constexpr int64_t kScratchBytes = int64_t{64} << 20;
// Up to this size each rank gets all rows of the others and adds them up: one exchange. Beyond,
// each adds up a share of the rows and sends it to the others: two exchanges, of fewer bytes.
constexpr int64_t kOneExchangeBytes = int64_t{128} << 10;

// Parts lie at multiples of this.
constexpr int64_t kAlign = 16;

constexpr int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, kAlign) * kAlign; }
// How many of `count` elements each rank adds up, but for the last ones.
constexpr int64_t ShareOf(int64_t count, int64_t element_bytes, int size) {
  return Aligned(CeilDiv(count, size) * element_bytes) / element_bytes;
}
// Elements whose shares of all ranks fit the scratch.
constexpr int64_t MostShared(int64_t element_bytes, int size) {
  return (kScratchBytes / size - kAlign) / element_bytes * size;
}
constexpr bool SharesFit() {
  for (int size = 2; size <= 512; ++size) {
    for (const int64_t element : {2, 4}) {
      const int64_t share = ShareOf(MostShared(element, size), element, size);
      if (share * element * size > kScratchBytes) return false;
      if (kOneExchangeBytes * size > kScratchBytes) return false;
    }
  }
  return true;
}
static_assert(SharesFit());

// Memory of one GPU for what is received.
class Scratch {
 public:
  // On the current GPU; null if that fails.
  Scratch() : data_(ops::cuda::AllocateWorkspace(kScratchBytes, "what ranks receive")) {}
  ~Scratch() { cudaFree(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
};

// Where a rank is.
struct Place {
  int rank = 0;
  int size = 1;
  int local = 0;  // among the ranks of its process
};

class NcclRank final : public Communicator {
 public:
  // `local`: the same rank among those of its process, for what lies in the host's memory.
  // `processes`: those of the ranks. `stage`: the same rank among those of its stage; null where
  // there is one.
  NcclRank(std::shared_ptr<NcclProcess> process, NcclComm& comm, const Place& place,
           const Context& context, std::shared_ptr<Communicator> local, Communicator& processes,
           std::unique_ptr<Communicator> stage)
      : process_(std::move(process)),
        context_(context),
        place_(place),
        local_(std::move(local)),
        processes_(processes),
        stage_(std::move(stage)),
        comm_(comm) {
    process_->Add(local_.get());
    if (stage_ != nullptr) process_->Add(stage_.get());
  }
  ~NcclRank() override {
    Fail(Unavailable(fmt::format("rank {} has left", place_.rank)));
    cudaStreamSynchronize(context_.stream);
    if (stage_ != nullptr) process_->Remove(stage_.get());
    process_->Remove(local_.get());
  }
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }
  Communicator& stage() override { return stage_ == nullptr ? *this : *stage_; }

  void AllReduce(const Tensor& rows) override {
    if (size() == 1 || process_->failed()) return;
    const auto element = static_cast<int64_t>(SizeOf(rows.dtype));
    const int64_t count = rows.NumElements();
    const bool one_exchange = rows.NumBytes() <= kOneExchangeBytes;
    const int64_t most = one_exchange ? count : MostShared(element, size());
    for (int64_t begin = 0; begin < count; begin += most) {
      const Tensor piece = Elements(rows, begin, std::min(most, count - begin));
      one_exchange ? SumAll(piece) : SumShares(piece);
    }
  }

  void GatherColumns(const Tensor& part, const Tensor& all) override {
    TANDEM_CHECK(part.dim(0) == all.dim(0), "a part has other rows");
    if (part.NumElements() == 0 || process_->failed()) return;
    const int64_t width = part.dim(1), columns = all.dim(1);
    const int64_t most = kScratchBytes / size() / (width * int64_t{sizeof(float)} + kAlign);
    TANDEM_CHECK(most > 0, "a row of all ranks is too long");
    for (int64_t begin = 0; begin < part.dim(0); begin += most) {
      const int64_t rows = std::min(most, part.dim(0) - begin);
      const Tensor own = Elements(part, begin * width, rows * width);
      const ReceivedParts parts = ExchangeAll(own);
      EnqueuePlace(context_, parts, width,
                   {all.As<float>() + begin * columns, all.dtype, {rows, columns}, all.device});
    }
  }

  void Send(const Tensor& rows, int to) override {
    Do("Send", rows, [&](const NcclLibrary& nccl, NcclLibrary::Comm comm) {
      return nccl.send(rows.data, BytesOf(rows), NcclLibrary::kBytes, to, comm, context_.stream);
    });
  }
  void Receive(const Tensor& rows, int from) override {
    Do("Receive", rows, [&](const NcclLibrary& nccl, NcclLibrary::Comm comm) {
      return nccl.receive(rows.data, BytesOf(rows), NcclLibrary::kBytes, from, comm,
                          context_.stream);
    });
  }

  // The processes' first ranks get the bytes, then the others of each process.
  void Broadcast(std::span<std::byte> bytes) override {
    if (place_.local == 0) processes_.Broadcast(bytes);
    local_->Broadcast(bytes);
  }

  void Fail(const Status& why) override { process_->Fail(why); }
  Status status() const override { return process_->status(); }

 private:
  static size_t BytesOf(const Tensor& rows) { return static_cast<size_t>(rows.NumBytes()); }
  static Tensor Elements(const Tensor& rows, int64_t begin, int64_t count) {
    const auto offset = begin * static_cast<int64_t>(SizeOf(rows.dtype));
    return {static_cast<std::byte*>(rows.data) + offset, rows.dtype, {count}, rows.device};
  }

  template <typename Enqueue>
  void Do(const char* what, const Tensor& rows, const Enqueue& enqueue) {
    if (rows.NumElements() == 0 || size() == 1 || process_->failed()) return;
    if (const Status done = comm_.Do(what, enqueue); !done.ok()) Fail(done);
  }

  // Sends to each other rank what sent(peer) gives, and receives from it what received(peer) gives,
  // all at once. Empty ones are left out, on both sides.
  template <typename Sent, typename Received>
  void Exchange(const Sent& sent, const Received& received) {
    const Status done =
        comm_.Do("an exchange", [&](const NcclLibrary& nccl, NcclLibrary::Comm comm) {
          return nccl.Group([&] {
            int error = NcclLibrary::kSuccess;
            for (int peer = 0; peer < size() && error == NcclLibrary::kSuccess; ++peer) {
              if (peer == rank()) continue;
              const std::span<const std::byte> out = sent(peer);
              const std::span<std::byte> in = received(peer);
              if (!out.empty()) {
                error = nccl.send(out.data(), out.size(), NcclLibrary::kBytes, peer, comm,
                                  context_.stream);
              }
              if (!in.empty() && error == NcclLibrary::kSuccess) {
                error = nccl.receive(in.data(), in.size(), NcclLibrary::kBytes, peer, comm,
                                     context_.stream);
              }
            }
            return error;
          });
        });
    if (!done.ok()) Fail(done);
  }

  static std::span<std::byte> Span(const Tensor& rows) {
    return {static_cast<std::byte*>(rows.data), BytesOf(rows)};
  }
  ReceivedParts PartsOf(const Tensor& own) const {
    return {.received = scratch_.data(),
            .stride = Aligned(own.NumBytes()),
            .own = own.data,
            .rank = rank(),
            .size = size()};
  }

  // Where the part of a peer is received.
  auto ScratchOf(const ReceivedParts& parts, const Tensor& own) const {
    return [this, stride = parts.stride, bytes = BytesOf(own)](int peer) {
      return std::span(scratch_.data() + peer * stride, bytes);
    };
  }

  // The rows of every rank, at every rank.
  ReceivedParts ExchangeAll(const Tensor& own) {
    const ReceivedParts parts = PartsOf(own);
    Exchange([&](int) -> std::span<const std::byte> { return Span(own); }, ScratchOf(parts, own));
    return parts;
  }

  void SumAll(const Tensor& rows) { EnqueueSum(context_, ExchangeAll(rows), rows); }

  // Each rank adds up one share of the rows.
  void SumShares(const Tensor& rows) {
    const int64_t share =
        ShareOf(rows.NumElements(), static_cast<int64_t>(SizeOf(rows.dtype)), size());
    const auto share_of = [&](int rank) {
      const int64_t begin = std::min(rank * share, rows.NumElements());
      return Elements(rows, begin, std::min(share, rows.NumElements() - begin));
    };
    const Tensor own = share_of(rank());
    const ReceivedParts parts = PartsOf(own);
    Exchange([&](int peer) -> std::span<const std::byte> { return Span(share_of(peer)); },
             ScratchOf(parts, own));
    if (own.NumElements() > 0) EnqueueSum(context_, parts, own);
    Exchange([&](int) -> std::span<const std::byte> { return Span(own); },
             [&](int peer) { return Span(share_of(peer)); });
  }

  const std::shared_ptr<NcclProcess> process_;
  const Context context_;
  const Place place_;
  const std::shared_ptr<Communicator> local_;
  Communicator& processes_;
  const std::unique_ptr<Communicator> stage_;
  const Scratch scratch_;
  NcclComm& comm_;
};

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// The GPUs of this process, and what its ranks share.
struct Here {
  const NcclLibrary& nccl;
  std::span<const Context> contexts;
  std::shared_ptr<Communicator> processes;
  std::shared_ptr<NcclProcess> process;
  std::vector<std::shared_ptr<Communicator>> locals;  // of each rank
};

// The ranks of this process among `size` that `id` names, from rank `first` on. `processes`: those
// of them; `stages`: of each rank, none where there is one stage.
Result<Ranks> Connect(const Here& here, const NcclLibrary::UniqueId& id, int size, int first,
                      Communicator& processes, Ranks stages) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<NcclLibrary::Comm> comms,
                          ConnectNccl(here.nccl, id, size, first, here.contexts, *here.processes));
  std::vector<NcclComm*> owned;
  for (const NcclLibrary::Comm comm : comms) {
    owned.push_back(&here.process->Adopt(here.nccl, comm));
  }
  Ranks ranks;
  for (size_t i = 0; i < owned.size(); ++i) {
    const Context& context = here.contexts[i];
    CheckCuda(cudaSetDevice(context.device), "choosing the GPU");
    const auto local = static_cast<int>(i);
    ranks.push_back(std::make_unique<NcclRank>(
        here.process, *owned[i], Place{first + local, size, local}, context, here.locals[i],
        processes, stages.empty() ? nullptr : std::move(stages[i])));
  }
  TANDEM_RETURN_IF_ERROR(ops::cuda::TakeFailure());
  return ranks;
}

// The ranks of this process among those of their stages; none where there is one stage.
Result<Ranks> MakeStages(const Here& here, int stages, std::span<const NcclLibrary::UniqueId> ids) {
  Ranks ranks;
  if (stages == 1) return ranks;
  const auto count = static_cast<int>(here.contexts.size());
  const int of_stage = here.processes->size() * count / stages;
  if (of_stage > count) {
    const int first = here.processes->rank() * count;
    return Connect(here, ids[static_cast<size_t>(first / of_stage)], of_stage, first % of_stage,
                   here.processes->stage(), {});
  }
  StreamRanksOptions options;
  options.on_failure = [process = here.process](const Status& why) { process->Fail(why); };
  for (int first = 0; first < count; first += of_stage) {
    TANDEM_ASSIGN_OR_RETURN(Ranks stage,
                            MakeStreamRanks(here.contexts.subspan(static_cast<size_t>(first),
                                                                  static_cast<size_t>(of_stage)),
                                            options));
    std::ranges::move(stage, std::back_inserter(ranks));
  }
  return ranks;
}

Result<Ranks> Make(std::span<const Context> contexts,
                   const std::shared_ptr<Communicator>& processes, int stages) {
  TANDEM_ASSIGN_OR_RETURN(const NcclLibrary* const nccl, NcclLibrary::Load());
  const auto count = static_cast<int>(contexts.size());
  const int size = processes->size() * count;
  TANDEM_CHECK(stages >= 1 && size % stages == 0, "stages with different numbers of ranks");
  const CurrentGpu restored;
  // That of all ranks, then those of the stages.
  std::vector<NcclLibrary::UniqueId> ids(static_cast<size_t>(1 + stages));
  if (processes->rank() == 0) {
    for (NcclLibrary::UniqueId& id : ids) {
      TANDEM_RETURN_IF_ERROR(
          nccl->StatusOf(nccl->get_unique_id(&id), "an address for the ranks to meet at"));
    }
  }
  processes->Broadcast(std::as_writable_bytes(std::span(ids)));
  TANDEM_RETURN_IF_ERROR(processes->status());
  for (const Context& context : contexts) {
    CheckCuda(cudaSetDevice(context.device), "choosing the GPU");
    LoadReceivedParts();
  }
  Here here = {.nccl = *nccl,
               .contexts = contexts,
               .processes = processes,
               .process = std::make_shared<NcclProcess>(processes),
               .locals = {}};
  for (auto& local : MakeInProcessRanks(count)) here.locals.push_back(std::move(local));
  TANDEM_ASSIGN_OR_RETURN(Ranks of_stages, MakeStages(here, stages, std::span(ids).subspan(1)));
  return Connect(here, ids.front(), size, processes->rank() * count, *processes,
                 std::move(of_stages));
}

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> MakeNcclRanks(
    std::span<const Context> contexts, const std::shared_ptr<Communicator>& processes, int stages) {
  Result<Ranks> ranks = Make(contexts, processes, stages);
  // The others wait for this process.
  if (!ranks.ok()) processes->Fail(ranks.status());
  return ranks;
}

}  // namespace tandem::cuda_ranks
