// Send and Receive: a rank stores its rows in memory of the one that receives them, and says so;
// that one copies them to their place. What is to be sent next may be stored while what came before
// is being copied.
#include <algorithm>
#include <bit>

#include "comm/cuda/collectives.cuh"
#include "comm/cuda/exchange.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::cuda_ranks {
namespace {

constexpr int kElements = 8;  // of a piece; two bytes each, whatever they mean

// To the rank `to`. A block handles `share` pieces in a round.
template <bool kWhole>
__global__ void __launch_bounds__(kPieceThreads)
    SendKernel(const __grid_constant__ Links links, const uint16_t* rows, int64_t count, int to,
               int share) {
  ops::cuda::BeginKernel();
  auto& sent = Own(links).sent[to];
  Channel& channel = ChannelOf(links, links.rank, to);
  uint64_t round = sent.rounds[blockIdx.x];
  if (round == kGivenUp) return;
  const int64_t step = int64_t{share} * kElements;
  for (int64_t begin = blockIdx.x * step; begin < count; begin += gridDim.x * step) {
    ++round;
    bool free = true;
    if (threadIdx.x == 0) {
      // Of the rounds before, the last one may still lie in the channel's other half.
      const uint64_t* const taken = &sent.taken[blockIdx.x];
      free = Await(links, [&] { return LoadAcquire(taken) + 2 >= round; });
    }
    if (__syncthreads_or(free ? 0 : 1) != 0) {
      round = kGivenUp;
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
        [&](int i, const uint4& piece) { channel.pieces[round % 2][blockIdx.x][i] = piece; });
    __syncthreads();
    if (threadIdx.x == 0) StoreRelease(&channel.arrived[blockIdx.x], round);
  }
  if (threadIdx.x == 0) sent.rounds[blockIdx.x] = round;
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
                 int to) {
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
