// GatherColumns: each rank stages its part and copies the peers' parts to their columns.
#include <algorithm>
#include <bit>
#include <limits>

#include "comm/cuda/collectives.cuh"
#include "comm/cuda/exchange.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::cuda_ranks {
namespace {

constexpr int kElements = 4;  // of a piece

// Where the parts go.
struct Columns {
  float* all;      // [rows, columns]
  uint32_t count;  // elements of a part: rows times width
  uint32_t width;  // of a part
  int64_t columns;
  bool whole;  // a piece lies in one row, and is written at once

  __device__ void Put(int from, uint32_t first, const uint4& piece) const {
    const int64_t begin = int64_t{from} * width;
    if (whole) {
      const int64_t column = begin + first % width;
      if (column < columns) {
        *reinterpret_cast<uint4*>(all + int64_t{first / width} * columns + column) = piece;
      }
      return;
    }
    const auto values = std::bit_cast<ops::cuda::Pack<float, kElements>>(piece);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const uint32_t i = first + static_cast<uint32_t>(e);
      const int64_t column = begin + i % width;
      if (i < count && column < columns) {
        all[int64_t{i / width} * columns + column] = values.at[e];
      }
    }
  }
};

// A block handles `share` pieces of each rank in a round.
template <bool kWhole>
__global__ void __launch_bounds__(kPieceThreads, kBlocksPerSm)
    GatherKernel(const __grid_constant__ Links links, const float* part, const Columns columns,
                 int share) {
  ops::cuda::BeginKernel();
  RankMemory& own = Own(links);
  uint64_t round = own.piece_rounds[blockIdx.x];
  if (round == kGivenUp) return;
  const uint32_t count = columns.count;
  const uint32_t step = static_cast<uint32_t>(share) * kElements;
  for (int64_t begin = int64_t{blockIdx.x} * step; begin < count;
       begin += int64_t{gridDim.x} * step) {
    ++round;
    const int pieces =
        static_cast<int>(min(int64_t{share}, (count - begin + kElements - 1) / kElements));
    const auto first = [&](int piece) {
      return static_cast<uint32_t>(begin) + static_cast<uint32_t>(piece) * kElements;
    };
    uint4* const staged = own.staged[round % 2][blockIdx.x];
    MovePieces<4>(
        pieces,
        [&](int i) {
          return std::bit_cast<uint4>(
              LoadElements<float, kElements, kWhole>(part, first(i), count));
        },
        [&](int i, const uint4& piece) {
          staged[i] = piece;
          columns.Put(links.rank, first(i), piece);
        });
    if (!Meet(links, kStaged, round)) {
      round = kGivenUp;
      break;
    }
    // The peers' pieces, one rank after the other.
    const auto peer = [&](int i) { return i / pieces + (i / pieces >= links.rank ? 1 : 0); };
    MovePieces<8>(
        (links.size - 1) * pieces,
        [&](int i) {
          return LoadPiece(&links.memory[peer(i)]->staged[round % 2][blockIdx.x][i % pieces]);
        },
        [&](int i, const uint4& piece) { columns.Put(peer(i), first(i % pieces), piece); });
  }
  if (threadIdx.x == 0) own.piece_rounds[blockIdx.x] = round;
}

}  // namespace

void EnqueueGather(const ops::cuda::Context& context, const Links& links, const Tensor& part,
                   const Tensor& all) {
  using ops::cuda::CeilDiv;
  TANDEM_CHECK(part.dtype == DType::kF32 && all.dtype == DType::kF32, "parts are fp32");
  TANDEM_CHECK(part.NumElements() <= std::numeric_limits<int32_t>::max(), "a part is too large");
  constexpr int64_t kWarp = 32;
  const int64_t width = part.dim(1), columns = all.dim(1);
  const int64_t pieces = CeilDiv(part.NumElements(), kElements);
  const int64_t share =
      std::min<int64_t>(kPiecesPerBlock, CeilDiv(pieces, kWarp * links.max_blocks) * kWarp);
  const int64_t blocks = std::min<int64_t>(CeilDiv(pieces, share), links.max_blocks);
  const Columns to{
      all.As<float>(), static_cast<uint32_t>(part.NumElements()), static_cast<uint32_t>(width),
      columns,
      width % kElements == 0 && columns % kElements == 0 && ops::cuda::HasPieces(0, all.data)};
  const bool whole = part.NumElements() % kElements == 0 && ops::cuda::HasPieces(0, part.data);
  ops::cuda::LaunchEarly(context, "Gather", whole ? GatherKernel<true> : GatherKernel<false>,
                         dim3(static_cast<unsigned>(blocks)), kPieceThreads, 0, links,
                         static_cast<const float*>(part.As<float>()), to, static_cast<int>(share));
}

void LoadGather() {
  LoadKernel(GatherKernel<true>);
  LoadKernel(GatherKernel<false>);
}

}  // namespace tandem::cuda_ranks
