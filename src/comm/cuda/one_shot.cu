// All-reduce of few bytes: each rank sends its rows to all peers, in lines that carry the number of
// the round, and adds up what it has received. A line is polled until its round comes: no flag, no
// fence, one way through NVLink.
#include <algorithm>
#include <bit>

#include "comm/cuda/collectives.cuh"
#include "comm/cuda/exchange.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::cuda_ranks {
namespace {

// A thread always uses the same lines of its block's area, `lines` of them in a round.
template <typename T, int kMost, bool kWhole>
__global__ void __launch_bounds__(kLineThreads, kBlocksPerSm)
    OneShotKernel(const __grid_constant__ Links links, T* rows, int64_t count, int lines) {
  constexpr int kElements = 8 / sizeof(T);
  ops::cuda::BeginKernel();
  uint64_t round = Own(links).line_rounds[blockIdx.x];
  const int64_t step = int64_t{lines} * kLineThreads * kElements;
  for (int64_t begin = blockIdx.x * step; begin < count; begin += gridDim.x * step) {
    const auto first_of = [&](int i) {
      return begin + (int64_t{i} * kLineThreads + threadIdx.x) * kElements;
    };
    const auto has = [&](int i) { return i < lines && first_of(i) < count; };
    uint64_t own[kLinesPerThread];
#pragma unroll
    for (int i = 0; i < kLinesPerThread; ++i) {
      if (has(i)) {
        own[i] =
            std::bit_cast<uint64_t>(LoadElements<T, kElements, kWhole>(rows, first_of(i), count));
      }
    }
    // Only now, so that it is read together with the rows.
    if (round == kGivenUp) return;
    ++round;
#pragma unroll
    for (int to = 0; to < kMost; ++to) {
      if (to == links.rank || to >= links.size) continue;
      Line* const area = LinesOf(links, links.rank, to, round) + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kLinesPerThread; ++i) {
        if (has(i)) StoreLine(area + i * kLineThreads, own[i], round);
      }
    }
    const Line* areas[kMost];
#pragma unroll
    for (int from = 0; from < kMost; ++from) {
      areas[from] = LinesOf(links, from, links.rank, round) + threadIdx.x;
    }
    bool received = true;
#pragma unroll
    for (int i = 0; i < kLinesPerThread; ++i) {
      if (!has(i)) break;
      uint64_t data[kMost];
      const bool came = Await(links, [&] {
        bool all = true;
#pragma unroll
        for (int from = 0; from < kMost; ++from) {
          data[from] = own[i];
          if (from == links.rank || from >= links.size) continue;
          const Line line = LoadLine(areas[from] + i * kLineThreads);
          data[from] = line.data;
          all = all && line.round == round;
        }
        return all;
      });
      received = received && came;
      Sum<T, kElements> sum;
#pragma unroll
      for (int from = 0; from < kMost; ++from) {
        if (from >= links.size) break;
        sum.Add(std::bit_cast<ops::cuda::Pack<T, kElements>>(data[from]), from == 0);
      }
      StoreElements<T, kElements, kWhole>(rows, first_of(i), count, sum.Rounded());
    }
    // In the next round a peer's thread may send into the lines of this one's other threads.
    if (__syncthreads_or(received ? 0 : 1) != 0) {
      round = kGivenUp;
      break;
    }
  }
  if (threadIdx.x == 0) Own(links).line_rounds[blockIdx.x] = round;
}

}  // namespace

void EnqueueOneShot(const ops::cuda::Context& context, const Links& links, const Tensor& rows) {
  using ops::cuda::CeilDiv;
  const int64_t count = rows.NumElements();
  const int64_t threads = CeilDiv(rows.NumBytes(), 8 * kLineThreads);  // in blocks
  // As many blocks as possible, and more lines of each thread only when there are no more.
  const int64_t lines = std::clamp<int64_t>(CeilDiv(threads, links.max_blocks), 1, kLinesPerThread);
  const int64_t blocks = std::min<int64_t>(CeilDiv(threads, lines), links.max_blocks);
  WithRows<8>(rows, links.size, [&](auto element, auto most, auto whole) {
    using T = decltype(element);
    ops::cuda::LaunchEarly(context, "OneShot", OneShotKernel<T, most, whole>,
                           dim3(static_cast<unsigned>(blocks)), kLineThreads, 0, links,
                           rows.As<T>(), count, static_cast<int>(lines));
  });
}

void LoadOneShot(int ranks) {
  ForEachKindOfRows(ranks, [](auto element, auto most, auto whole) {
    LoadKernel(OneShotKernel<decltype(element), most, whole>);
  });
}

}  // namespace tandem::cuda_ranks
