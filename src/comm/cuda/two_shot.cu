// All-reduce of many bytes: a block cuts its part of the rows into a share for each rank. Each rank
// sends the shares to their ranks, adds up its own from what all have sent, and sends the sums to
// all. Nothing is read over a link: writes need no answer, so that more of them are under way.
#include <algorithm>
#include <bit>

#include "comm/cuda/collectives.cuh"
#include "comm/cuda/exchange.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::cuda_ranks {
namespace {

// A block handles `share` pieces of each rank in a round.
template <typename T, int kMost, bool kWhole>
__global__ void __launch_bounds__(kPieceThreads, kBlocksPerSm)
    TwoShotKernel(const __grid_constant__ Links links, T* rows, int64_t count, int share) {
  constexpr int kElements = 16 / sizeof(T);
  constexpr int kBatch = 8 / kMost;  // of sums, so that 8 loads are under way
  using Pack = ops::cuda::Pack<T, kElements>;
  ops::cuda::BeginKernel();
  RankMemory& own = Own(links);
  uint64_t round = own.piece_rounds[blockIdx.x];
  if (round == kGivenUp) return;
  const int own_begin = links.rank * share;
  const uint4* const sums = own.sums[blockIdx.x];  // by rank

  const int64_t step = int64_t{links.size} * share * kElements;
  for (int64_t begin = blockIdx.x * step; begin < count; begin += gridDim.x * step) {
    ++round;
    const auto store = [&](int piece, const uint4& value) {
      StoreElements<T, kElements, kWhole>(rows, begin + int64_t{piece} * kElements, count,
                                          std::bit_cast<Pack>(value));
    };

    // Each share to its rank.
    MovePieces<8>(
        links.size * share,
        [&](int i) {
          return std::bit_cast<uint4>(
              LoadElements<T, kElements, kWhole>(rows, begin + int64_t{i} * kElements, count));
        },
        [&](int i, const uint4& value) {
          const int to = i / share;
          links.memory[to]->staged[round % 2][blockIdx.x][own_begin + i - to * share] = value;
        });
    if (!Meet(links, kStaged, round)) {
      round = kGivenUp;
      break;
    }
    // All peers have finished the previous round, so what it sent them may be overwritten.
    const uint4* const staged = own.staged[round % 2][blockIdx.x];
    for (int i = static_cast<int>(threadIdx.x); i < share; i += kBatch * kPieceThreads) {
      uint4 pieces[kBatch][kMost];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int from = 0; from < kMost; ++from) {
          const int piece = i + b * kPieceThreads;
          if (piece >= share || from >= links.size) break;
          pieces[b][from] = LoadPiece(&staged[from * share + piece]);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int piece = i + b * kPieceThreads;
        if (piece >= share) break;
        Sum<T, kElements> sum;
#pragma unroll
        for (int from = 0; from < kMost; ++from) {
          if (from >= links.size) break;
          sum.Add(std::bit_cast<Pack>(pieces[b][from]), from == 0);
        }
        const auto rounded = std::bit_cast<uint4>(sum.Rounded());
        store(own_begin + piece, rounded);
#pragma unroll
        for (int to = 0; to < kMost; ++to) {
          if (to >= links.size) break;
          if (to != links.rank) links.memory[to]->sums[blockIdx.x][own_begin + piece] = rounded;
        }
      }
    }
    if (!Meet(links, kSummed, round)) {
      round = kGivenUp;
      break;
    }
    // The other ranks' shares.
    const auto other = [&](int i) { return i < own_begin ? i : i + share; };
    MovePieces<8>((links.size - 1) * share, [&](int i) { return LoadPiece(&sums[other(i)]); },
                  [&](int i, const uint4& value) { store(other(i), value); });
  }
  if (threadIdx.x == 0) own.piece_rounds[blockIdx.x] = round;
}

}  // namespace

void EnqueueTwoShot(const ops::cuda::Context& context, const Links& links, const Tensor& rows) {
  using ops::cuda::CeilDiv;
  constexpr int64_t kWarp = 32;  // whole warps read a share
  const int64_t pieces = CeilDiv(rows.NumBytes(), 16);
  const int64_t most = kPiecesPerBlock / links.size / kWarp * kWarp;
  const int64_t share =
      std::min(most, CeilDiv(pieces, kWarp * links.size * links.max_blocks) * kWarp);
  const int64_t blocks = std::min<int64_t>(CeilDiv(pieces, links.size * share), links.max_blocks);
  WithRows<16>(rows, links.size, [&](auto element, auto most_ranks, auto whole) {
    using T = decltype(element);
    ops::cuda::LaunchEarly(context, "TwoShot", TwoShotKernel<T, most_ranks, whole>,
                           dim3(static_cast<unsigned>(blocks)), kPieceThreads, 0, links,
                           rows.As<T>(), rows.NumElements(), static_cast<int>(share));
  });
}

void LoadTwoShot(int ranks) {
  ForEachKindOfRows(ranks, [](auto element, auto most, auto whole) {
    LoadKernel(TwoShotKernel<decltype(element), most, whole>);
  });
}

}  // namespace tandem::cuda_ranks
