// Send, Receive and BroadcastRows: a rank stores its rows in memory of those that receive them, and
// says so; they copy them to their place. What is to be sent next may be stored while what came
// before is being copied.
#include <algorithm>
#include <bit>

#include "comm/cuda/collectives.cuh"
#include "comm/cuda/exchange.cuh"
#include "ops/cuda/dependent_launch.cuh"

namespace tandem::cuda_ranks {
namespace {

constexpr int kElements = 8;  // of a piece; two bytes each, whatever they mean

// To the ranks in the set `to`, as bits. A block handles `share` pieces in a round.
template <bool kWhole>
__global__ void __launch_bounds__(kPieceThreads)
    SendKernel(const __grid_constant__ Links links, const uint16_t* rows, int64_t count,
               uint32_t to, int share) {
  ops::cuda::BeginKernel();
  RankMemory& own = Own(links);
  const auto sends_to = [&](int rank) { return (to >> rank & 1) != 0; };
  uint64_t rounds[kMaxRanks] = {};  // of each channel
  bool given_up = false;
#pragma unroll
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (!sends_to(rank)) continue;
    rounds[rank] = own.sent[rank].rounds[blockIdx.x];
    given_up = given_up || rounds[rank] == kGivenUp;
  }
  if (given_up) return;
  const auto peer = static_cast<int>(threadIdx.x);  // of the threads that wait and signal
  const bool signals = peer < links.size && sends_to(peer);
  const int64_t step = int64_t{share} * kElements;
  for (int64_t begin = blockIdx.x * step; begin < count; begin += gridDim.x * step) {
    bool free = true;
    uint64_t round = 0;
#pragma unroll
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      if (sends_to(rank)) ++rounds[rank];
      if (rank == peer) round = rounds[rank];
    }
    if (signals) {
      // Of the rounds before, the last one may still lie in the channel's other half.
      const uint64_t* const taken = &own.sent[peer].taken[blockIdx.x];
      free = Await(links, [&] { return LoadAcquire(taken) + 2 >= round; });
    }
    if (__syncthreads_or(free ? 0 : 1) != 0) {
      given_up = true;
      break;
    }
    const auto pieces =
        static_cast<int>(min(int64_t{share}, (count - begin + kElements - 1) / kElements));
    MovePieces<4>(
        pieces,
        [&](int i) {
          return std::bit_cast<uint4>(LoadElements<uint16_t, kElements, kWhole>(
              rows, begin + int64_t{i} * kElements, count));
        },
        [&](int i, const uint4& piece) {
#pragma unroll
          for (int rank = 0; rank < kMaxRanks; ++rank) {
            if (!sends_to(rank)) continue;
            ChannelOf(links, links.rank, rank).pieces[rounds[rank] % 2][blockIdx.x][i] = piece;
          }
        });
    __syncthreads();
    if (signals) {
      StoreRelease(&ChannelOf(links, links.rank, peer).arrived[blockIdx.x], round);
    }
  }
#pragma unroll
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (signals && rank == peer) {
      own.sent[rank].rounds[blockIdx.x] = given_up ? kGivenUp : rounds[rank];
    }
  }
}

template <bool kWhole>
__global__ void __launch_bounds__(kPieceThreads)
    ReceiveKernel(const __grid_constant__ Links links, uint16_t* rows, int64_t count, int from,
                  int share) {
  ops::cuda::BeginKernel();
  Channel& channel = ChannelOf(links, from, links.rank);
  uint64_t round = channel.rounds[blockIdx.x];
  if (round == kGivenUp) return;
  const int64_t step = int64_t{share} * kElements;
  for (int64_t begin = blockIdx.x * step; begin < count; begin += gridDim.x * step) {
    ++round;
    bool arrived = true;
    if (threadIdx.x == 0) {
      // The sender may be a round ahead.
      arrived = Await(links, [&] { return LoadAcquire(&channel.arrived[blockIdx.x]) >= round; });
    }
    if (__syncthreads_or(arrived ? 0 : 1) != 0) {
      round = kGivenUp;
      break;
    }
    const auto pieces =
        static_cast<int>(min(int64_t{share}, (count - begin + kElements - 1) / kElements));
    const uint4* const sent = channel.pieces[round % 2][blockIdx.x];
    MovePieces<4>(
        pieces, [&](int i) { return LoadPiece(&sent[i]); },
        [&](int i, const uint4& piece) {
          StoreElements<uint16_t, kElements, kWhole>(
              rows, begin + int64_t{i} * kElements, count,
              std::bit_cast<ops::cuda::Pack<uint16_t, kElements>>(piece));
        });
    __syncthreads();
    if (threadIdx.x == 0) {
      StoreRelease(&links.memory[from]->sent[links.rank].taken[blockIdx.x], round);
    }
  }
  if (threadIdx.x == 0) channel.rounds[blockIdx.x] = round;
}

// How a kernel divides rows: the same on both sides.
struct Division {
  Division(const Links& links, const Tensor& rows) {
    using ops::cuda::CeilDiv;
    TANDEM_CHECK(rows.NumBytes() % sizeof(uint16_t) == 0, "rows of an odd number of bytes");
    constexpr int64_t kWarp = 32;
    count = rows.NumBytes() / static_cast<int64_t>(sizeof(uint16_t));
    whole = ops::cuda::HasPieces(count, rows.data);
    const int64_t pieces = CeilDiv(count, kElements);
    const int64_t most = std::min(links.max_blocks, kChannelBlocks);
    share =
        static_cast<int>(std::min<int64_t>(kChannelPieces, CeilDiv(pieces, kWarp * most) * kWarp));
    blocks = static_cast<unsigned>(std::min(CeilDiv(pieces, share), most));
  }

  int64_t count = 0;  // elements
  bool whole = false;
  int share = 0;
  unsigned blocks = 0;
};

}  // namespace

void EnqueueSend(const ops::cuda::Context& context, const Links& links, const Tensor& rows,
                 uint32_t to) {
  const Division by(links, rows);
  ops::cuda::LaunchEarly(context, "Send", by.whole ? SendKernel<true> : SendKernel<false>,
                         dim3(by.blocks), kPieceThreads, 0, links,
                         static_cast<const uint16_t*>(rows.data), by.count, to, by.share);
}

void EnqueueReceive(const ops::cuda::Context& context, const Links& links, const Tensor& rows,
                    int from) {
  const Division by(links, rows);
  ops::cuda::LaunchEarly(context, "Receive", by.whole ? ReceiveKernel<true> : ReceiveKernel<false>,
                         dim3(by.blocks), kPieceThreads, 0, links,
                         static_cast<uint16_t*>(rows.data), by.count, from, by.share);
}

void LoadSendAndReceive() {
  LoadKernel(SendKernel<true>);
  LoadKernel(SendKernel<false>);
  LoadKernel(ReceiveKernel<true>);
  LoadKernel(ReceiveKernel<false>);
}

}  // namespace tandem::cuda_ranks
