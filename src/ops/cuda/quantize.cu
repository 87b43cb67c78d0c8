#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "ops/cuda/quantize.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float AsFloat(float value) { return value; }
__device__ float AsFloat(__half value) { return __half2float(value); }
__device__ float AsFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ uint8_t RoundToFp8(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

// The largest value of the block, for all of its threads. NaN is ignored here: rounding keeps it.
__device__ float BlockMax(float value) {
  __shared__ float of_warp[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) value = fmaxf(value, of_warp[warp]);
  return value;
}

__device__ float ScaleOf(float largest) { return largest > 0.0f ? largest / kFp8Max : 1.0f; }

// One block per row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    QuantizeWeightKernel(const T* rows, int64_t cols, uint8_t* out, int64_t pitch, float* scales) {
  const int64_t row = blockIdx.x;
  const T* const from = rows + row * cols;
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    largest = fmaxf(largest, fabsf(AsFloat(from[i])));
  }
  const float scale = ScaleOf(BlockMax(largest));
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    out[row * pitch + i] = RoundToFp8(AsFloat(from[i]) / scale);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

// Eight elements of 16 bits.
template <typename T>
struct alignas(16) Piece {
  T values[8];
};

// One block per row; the second pass finds the row in the cache.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    QuantizeActivationKernel(const T* x, int cols, float fixed_scale, uint8_t* out, float* scales) {
  const int64_t row = blockIdx.x;
  const auto* const from = reinterpret_cast<const Piece<T>*>(x + row * cols);
  auto* const to = reinterpret_cast<uint2*>(out + row * cols);
  const int pieces = cols / 8;
  float scale = fixed_scale;
  if (fixed_scale == 0.0f) {
    float largest = 0.0f;
    for (int i = threadIdx.x; i < pieces; i += kThreads) {
      const Piece<T> piece = from[i];
#pragma unroll
      for (const T value : piece.values) largest = fmaxf(largest, fabsf(AsFloat(value)));
    }
    scale = ScaleOf(BlockMax(largest));
  }
  const float inverse = 1.0f / scale;
  for (int i = threadIdx.x; i < pieces; i += kThreads) {
    const Piece<T> piece = from[i];
    uint32_t words[2] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t rounded = RoundToFp8(AsFloat(piece.values[j]) * inverse);
      words[j / 4] |= rounded << (j % 4 * 8);
    }
    to[i] = make_uint2(words[0], words[1]);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

}  // namespace

void QuantizeWeightRows(const Context& context, const Tensor& rows, void* out, int64_t pitch,
                        float* scales) {
  const auto launch = [&](const auto* from) {
    QuantizeWeightKernel<<<static_cast<unsigned>(rows.dim(0)), kThreads, 0, context.stream>>>(
        from, rows.dim(1), static_cast<uint8_t*>(out), pitch, scales);
  };
  switch (rows.dtype) {
    case DType::kBF16:
      launch(static_cast<const __nv_bfloat16*>(rows.data));
      break;
    case DType::kF16:
      launch(static_cast<const __half*>(rows.data));
      break;
    case DType::kF32:
      launch(static_cast<const float*>(rows.data));
      break;
    default:
      TANDEM_CHECK(false, "weights to round are floating-point numbers");
  }
  CheckLaunch("rounding weights to fp8");
}

void QuantizeActivations(const Context& context, const Tensor& x, float fixed_scale, void* out,
                         float* scales) {
  const auto launch = [&](const auto* from) {
    QuantizeActivationKernel<<<static_cast<unsigned>(x.dim(0)), kThreads, 0, context.stream>>>(
        from, static_cast<int>(x.dim(1)), fixed_scale, static_cast<uint8_t*>(out), scales);
  };
  TANDEM_CHECK(x.dtype == DType::kBF16 || x.dtype == DType::kF16, "activations of 16 bits");
  if (x.dtype == DType::kBF16) {
    launch(static_cast<const __nv_bfloat16*>(x.data));
  } else {
    launch(static_cast<const __half*>(x.data));
  }
  CheckLaunch("rounding activations to fp8");
}

}  // namespace tandem::ops::cuda
