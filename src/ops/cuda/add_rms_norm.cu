// AddRmsNorm as one kernel: one block per row; the row is read once if it fits the block's
// registers.
#include <algorithm>

#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/cuda/elements.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kMaxThreads = 1024;

// The sum over the block, for every thread. The order depends only on the number of threads.
__device__ float BlockSum(float value) {
  __shared__ float sums[kMaxThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int num_warps = blockDim.x / 32;
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  value = lane < num_warps ? sums[lane] : 0.0f;
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kMaxThreads)
    AddRmsNormKernel(T* residual, const T* delta, const T* weight, int64_t hidden, float epsilon,
                     T* out) {
  using Piece = Pack<T, kCount>;
  residual += blockIdx.x * hidden;
  out += blockIdx.x * hidden;
  const int64_t pieces = hidden / kCount;
  // Rows that give each thread one piece stay in registers.
  const bool keep = pieces <= blockDim.x;
  Piece x{}, w{};
  if (keep && threadIdx.x < pieces) w = LoadPack<T, kCount>(weight + threadIdx.x * kCount);
  BeginKernel();
  float squares = 0.0f;
  for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    x = LoadPack<T, kCount>(residual + i * kCount);
    if (delta != nullptr) {
      const Piece d = LoadPack<T, kCount>(delta + blockIdx.x * hidden + i * kCount);
#pragma unroll
      for (int e = 0; e < kCount; ++e) x.at[e] = FromFloat<T>(ToFloat(x.at[e]) + ToFloat(d.at[e]));
      StorePack<T, kCount>(residual + i * kCount, x);
    }
#pragma unroll
    for (int e = 0; e < kCount; ++e) squares = fmaf(ToFloat(x.at[e]), ToFloat(x.at[e]), squares);
  }
  const float mean = BlockSum(squares) / static_cast<float>(hidden);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    if (!keep) {
      x = LoadPack<T, kCount>(residual + i * kCount);
      w = LoadPack<T, kCount>(weight + i * kCount);
    }
    Piece y;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      y.at[e] = FromFloat<T>(ToFloat(x.at[e]) * inverse * ToFloat(w.at[e]));
    }
    StorePack<T, kCount>(out + i * kCount, y);
  }
}

}  // namespace

void CudaOps::AddRmsNorm(const Tensor& residual, const Tensor& delta, const Tensor& weight,
                         float epsilon, const Tensor& out) {
  TANDEM_CHECK(residual.dtype == out.dtype && weight.dtype == out.dtype, "the types differ");
  const int64_t rows = residual.dim(0), hidden = residual.dim(1);
  if (rows == 0) return;
  WithActivation(out.dtype, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&]<int kCount>() {
      const int64_t warps = std::clamp<int64_t>(CeilDiv(hidden / kCount, 32), 1, kMaxThreads / 32);
      LaunchEarly(context_, "AddRmsNorm", AddRmsNormKernel<T, kCount>,
                  dim3(static_cast<unsigned>(rows)), 32 * warps, 0, static_cast<T*>(residual.data),
                  static_cast<const T*>(delta.data), static_cast<const T*>(weight.data), hidden,
                  epsilon, static_cast<T*>(out.data));
    };
    // An odd width leaves rows misaligned.
    if (hidden % 8 == 0) {
      launch.template operator()<8>();
    } else {
      launch.template operator()<1>();
    }
  });
}

}  // namespace tandem::ops::cuda
