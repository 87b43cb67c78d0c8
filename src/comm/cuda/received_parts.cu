#include <algorithm>

#include "comm/cuda/exchange.cuh"
#include "comm/cuda/received_parts.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::cuda_ranks {
namespace {

using ops::cuda::CeilDiv;

constexpr int kThreads = 256;
constexpr int kBytes = 16;  // that a thread reads at once
constexpr int kMostBlocksPerSm = 4;

template <typename T>
__device__ const T* PartOf(const ReceivedParts& parts, int rank) {
  return static_cast<const T*>(rank == parts.rank ? parts.own
                                                  : parts.received + rank * parts.stride);
}

template <typename T, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    SumKernel(const __grid_constant__ ReceivedParts parts, T* sums, int64_t count) {
  ops::cuda::BeginKernel();
  constexpr int kElements = kBytes / sizeof(T);
  const int64_t step = int64_t{gridDim.x} * kThreads * kElements;
  for (int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements; first < count;
       first += step) {
    Sum<T, kElements> sum;
    for (int rank = 0; rank < parts.size; ++rank) {
      sum.Add(LoadElements<T, kElements, kWhole>(PartOf<T>(parts, rank), first, count), rank == 0);
    }
    StoreElements<T, kElements, kWhole>(sums, first, count, sum.Rounded());
  }
}

// A block handles a row of a part at a time.
__global__ void __launch_bounds__(kThreads)
    PlaceKernel(const __grid_constant__ ReceivedParts parts, int64_t width, float* all,
                int64_t rows, int64_t columns) {
  ops::cuda::BeginKernel();
  for (int64_t i = blockIdx.x; i < rows * parts.size; i += gridDim.x) {
    const int64_t row = i / parts.size, rank = i % parts.size;
    const float* const part = PartOf<float>(parts, static_cast<int>(rank)) + row * width;
    float* const to = all + row * columns + rank * width;
    const int64_t room = min(width, columns - rank * width);
    for (int64_t column = threadIdx.x; column < room; column += kThreads) {
      to[column] = part[column];
    }
  }
}

unsigned BlocksFor(const ops::cuda::Context& context, int64_t blocks) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(blocks, 1, int64_t{kMostBlocksPerSm} * context.num_sms));
}

}  // namespace

void EnqueueSum(const ops::cuda::Context& context, const ReceivedParts& parts, const Tensor& sums) {
  const int64_t count = sums.NumElements();
  const bool whole = sums.NumBytes() % kBytes == 0 &&
                     ops::cuda::HasPieces(0, sums.data, parts.received, parts.own);
  WithElement(sums.dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t blocks = CeilDiv(sums.NumBytes(), int64_t{kThreads} * kBytes);
    ops::cuda::LaunchEarly(context, "Sum", whole ? SumKernel<T, true> : SumKernel<T, false>,
                           dim3(BlocksFor(context, blocks)), kThreads, 0, parts, sums.As<T>(),
                           count);
  });
}

void EnqueuePlace(const ops::cuda::Context& context, const ReceivedParts& parts, int64_t width,
                  const Tensor& all) {
  TANDEM_CHECK(all.dtype == DType::kF32, "parts are fp32");
  ops::cuda::LaunchEarly(context, "Place", PlaceKernel,
                         dim3(BlocksFor(context, all.dim(0) * parts.size)), kThreads, 0, parts,
                         width, all.As<float>(), all.dim(0), all.dim(1));
}

void LoadReceivedParts() {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    WithElement(dtype, [](auto element) {
      LoadKernel(SumKernel<decltype(element), true>);
      LoadKernel(SumKernel<decltype(element), false>);
    });
  }
  LoadKernel(PlaceKernel);
}

}  // namespace tandem::cuda_ranks
