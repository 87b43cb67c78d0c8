// One-shot all-reduce of few rows with the AddNorm that follows: a row is a cluster of blocks,
// whose threads have the pieces that the threads of AddNorm's block have
// (ops/cuda/linear/add_rms_norm.cu), so that the sum of the squares is added up in the same order
// and all bits are those of both kernels.
#include <cooperative_groups.h>

#include <bit>

#include "comm/cuda/collectives.cuh"
#include "comm/cuda/exchange.cuh"
#include "ops/cuda/device/block_reduce.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/linear/add_rms_norm.cuh"

namespace tandem::cuda_ranks {
namespace {

using ops::cuda::CeilDiv;
using ops::cuda::kMaxBlockWarps;
using ops::cuda::Pack;

constexpr int kElements = 8;  // of a piece, which are two lines
constexpr int kHalf = kElements / 2;
constexpr int kWarp = 32;
// Of a block: few, so that a row is sent by several SMs.
constexpr int kThreads = 128;
constexpr int64_t kBlockElements = int64_t{kThreads} * kElements;
// As many as one block of AddNorm holds with a piece for each thread.
constexpr int64_t kMostElements = int64_t{kMaxBlockWarps} * kWarp * kElements;
static_assert(2 * kThreads <= kLinesPerBlock, "a thread sends a piece in a round");

__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0U, value, distance);
  }
  return value;
}

// The sum over the warps of all blocks of the cluster, in the order of BlockSum of one block that
// has them all. `squares`: of a thread.
__device__ float ClusterSum(float squares) {
  __shared__ float of_warp[kMaxBlockWarps];
  const auto cluster = cooperative_groups::this_cluster();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  squares = WarpSum(squares);
  constexpr int kBlockWarps = kThreads / kWarp;
  const auto blocks = static_cast<int>(cluster.num_blocks());
  const int warp =
      static_cast<int>(cluster.block_rank()) * kBlockWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (lane < blocks) *cluster.map_shared_rank(&of_warp[warp], lane) = squares;
  cluster.sync();
  return WarpSum(lane < blocks * kBlockWarps ? of_warp[lane] : 0.0f);
}

template <typename T, int kMost>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    AllReduceNormKernel(const __grid_constant__ Links links, const T* delta, T* residual,
                        const T* weight, int64_t hidden, float epsilon, T* out) {
  using Piece = Pack<T, kElements>;
  const auto cluster = cooperative_groups::this_cluster();
  const int64_t row = blockIdx.x / cluster.num_blocks();
  const int64_t column = (int64_t{cluster.block_rank()} * kThreads + threadIdx.x) * kElements;
  const bool has = column < hidden;
  const int64_t at = row * hidden + column;
  Piece w{}, x{};
  if (has) w = ops::cuda::LoadPack<T, kElements>(weight + column);
  ops::cuda::BeginKernel();
  uint64_t round = Own(links).line_rounds[blockIdx.x];
  uint4 own{};
  if (has) {
    own = *reinterpret_cast<const uint4*>(delta + at);
    x = ops::cuda::LoadPack<T, kElements>(residual + at);
  }
  // A block that has given up still meets the others of its cluster.
  bool received = round != kGivenUp;
  ++round;
  const uint64_t halves[2] = {std::bit_cast<uint64_t>(uint2{own.x, own.y}),
                              std::bit_cast<uint64_t>(uint2{own.z, own.w})};
  if (has && received) {
#pragma unroll
    for (int to = 0; to < kMost; ++to) {
      if (to == links.rank || to >= links.size) continue;
      Line* const area = LinesOf(links, links.rank, to, round) + threadIdx.x;
      StoreLine(area, halves[0], round);
      StoreLine(area + kThreads, halves[1], round);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint64_t data[kMost];
      const bool came = Await(links, [&] {
        bool all = true;
#pragma unroll
        for (int from = 0; from < kMost; ++from) {
          data[from] = halves[half];
          if (from == links.rank || from >= links.size) continue;
          const Line line =
              LoadLine(LinesOf(links, from, links.rank, round) + threadIdx.x + half * kThreads);
          data[from] = line.data;
          all = all && line.round == round;
        }
        return all;
      });
      received = received && came;
      Sum<T, kHalf> sum;
#pragma unroll
      for (int from = 0; from < kMost; ++from) {
        if (from >= links.size) break;
        sum.Add(std::bit_cast<Pack<T, kHalf>>(data[from]), from == 0);
      }
      const Pack<T, kHalf> added = sum.Rounded();
#pragma unroll
      for (int e = 0; e < kHalf; ++e) {
        T& value = x.at[half * kHalf + e];
        value =
            ops::cuda::FromFloat<T>(ops::cuda::ToFloat(value) + ops::cuda::ToFloat(added.at[e]));
      }
    }
    ops::cuda::StorePack<T, kElements>(residual + at, x);
  }
  float squares = 0.0f;
#pragma unroll
  for (const T& value : x.at) {
    squares = fmaf(ops::cuda::ToFloat(value), ops::cuda::ToFloat(value), squares);
  }
  const float mean = ClusterSum(squares) / static_cast<float>(hidden);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  if (has) {
    Piece y;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      y.at[e] = ops::cuda::FromFloat<T>(ops::cuda::ToFloat(x.at[e]) * inverse *
                                        ops::cuda::ToFloat(w.at[e]));
    }
    ops::cuda::StorePack<T, kElements>(out + at, y);
  }
  if (__syncthreads_or(received ? 0 : 1) != 0) round = kGivenUp;
  if (threadIdx.x == 0) Own(links).line_rounds[blockIdx.x] = round;
}

int BlocksOfRow(int64_t hidden) { return static_cast<int>(CeilDiv(hidden, kBlockElements)); }

}  // namespace

bool EnqueueAllReduceNorm(const ops::cuda::Context& context, const Links& links,
                          const ops::NormedRows& x) {
  const int64_t rows = x.delta.dim(0), hidden = x.delta.dim(1);
  const int blocks = BlocksOfRow(hidden);
  // AddNorm has whole warps there, and takes pieces of one size.
  if (hidden % (kWarp * kElements) != 0 || hidden > kMostElements ||
      rows * blocks > links.max_blocks || context.compute_capability < 90 ||
      !ops::cuda::IsPlainNorm(x) || x.rows.dtype == DType::kF32 ||
      !ops::cuda::HasPieces(hidden, x.delta.data, x.residual.data, x.rows.data,
                            x.norm.weight.data)) {
    return false;
  }
  ops::cuda::WithActivation(x.rows.dtype, [&](auto element) {
    using T = decltype(element);
    WithMostRanks(links.size, [&](auto most) {
      ops::cuda::LaunchEarlyInClusters(
          context, "AllReduceNorm", blocks, AllReduceNormKernel<T, most>,
          dim3(static_cast<unsigned>(rows * blocks)), kThreads, 0, links,
          static_cast<const T*>(x.delta.data), static_cast<T*>(x.residual.data),
          static_cast<const T*>(x.norm.weight.data), hidden, x.norm.epsilon,
          static_cast<T*>(x.rows.data));
    });
  });
  return true;
}

void LoadAllReduceNorm(int ranks) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    ops::cuda::WithActivation(dtype, [&](auto element) {
      WithMostRanks(ranks,
                    [](auto most) { LoadKernel(AllReduceNormKernel<decltype(element), most>); });
    });
  }
}

}  // namespace tandem::cuda_ranks
