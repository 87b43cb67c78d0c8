#include <algorithm>

#include "ops/cuda/block_reduce.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/cuda/fp8_rows.cuh"
#include "ops/cuda/quantize.cuh"
#include "ops/cuda/swiglu.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxThreads = 1024;

__device__ float AsFloat(float value) { return value; }
template <typename T>
__device__ float AsFloat(T value) {
  return ToFloat(value);
}

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
    out[row * pitch + i] = FromFloat<Fp8>(AsFloat(from[i]) / scale);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

// Rows of activations in pieces of eight: as they are, or the SwiGLU of rows (gate, up).
template <typename T>
struct PlainRows {
  const T* rows;
  __device__ Pack<T, 8> At(int64_t row, int cols, int piece) const {
    return LoadPack<T, 8>(rows + row * cols + piece * 8);
  }
};
template <typename T>
struct SwiGluRows {
  const T* gate_up;
  __device__ Pack<T, 8> At(int64_t row, int cols, int piece) const {
    const T* const gate = gate_up + row * 2 * cols + piece * 8;
    return SwiGluOf(LoadPack<T, 8>(gate), LoadPack<T, 8>(gate + cols));
  }
};

// Pieces that a thread keeps between finding the largest value and rounding; it asks for the others
// twice.
constexpr int kKept = 4;

// One block per row.
template <typename T, typename Rows>
__global__ void __launch_bounds__(kMaxThreads)
    QuantizeActivationKernel(const Rows rows, int cols, float fixed_scale, uint8_t* out,
                             float* scales) {
  const int64_t row = blockIdx.x;
  const int pieces = cols / 8, threads = static_cast<int>(blockDim.x);
  auto* const to = reinterpret_cast<uint2*>(out + row * cols);
  BeginKernel();
  Pack<T, 8> kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = k * threads + static_cast<int>(threadIdx.x);
    if (i < pieces) kept[k] = rows.At(row, cols, i);
  }
  float scale = fixed_scale;
  if (fixed_scale == 0.0f) {
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < kKept; ++k) largest = LargestOf(kept[k], largest);
    for (int i = kKept * threads + static_cast<int>(threadIdx.x); i < pieces; i += threads) {
      largest = LargestOf(rows.At(row, cols, i), largest);
    }
    scale = ScaleOf(BlockMax(largest));
  }
  const float inverse = 1.0f / scale;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = k * threads + static_cast<int>(threadIdx.x);
    if (i < pieces) to[i] = RoundPiece(kept[k], inverse);
  }
  for (int i = kKept * threads + static_cast<int>(threadIdx.x); i < pieces; i += threads) {
    to[i] = RoundPiece(rows.At(row, cols, i), inverse);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

template <typename T, typename Rows>
void QuantizeRows(const Context& context, const Rows& rows, int64_t num_rows, int64_t cols,
                  float fixed_scale, void* out, float* scales) {
  const int64_t warps = std::clamp<int64_t>(CeilDiv(cols, 8 * 32 * kKept), 4, kMaxThreads / 32);
  LaunchEarly(context, "rounding activations to fp8", QuantizeActivationKernel<T, Rows>,
              dim3(static_cast<unsigned>(num_rows)), 32 * warps, 0, rows, static_cast<int>(cols),
              fixed_scale, static_cast<uint8_t*>(out), scales);
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
      launch(static_cast<const Bf16*>(rows.data));
      break;
    case DType::kF16:
      launch(static_cast<const Fp16*>(rows.data));
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
  WithActivation(x.dtype, [&](auto element) {
    using T = decltype(element);
    QuantizeRows<T>(context, PlainRows<T>{static_cast<const T*>(x.data)}, x.dim(0), x.dim(1),
                    fixed_scale, out, scales);
  });
}

void QuantizeSwiGlu(const Context& context, const Tensor& gate_up, float fixed_scale, void* out,
                    float* scales) {
  WithActivation(gate_up.dtype, [&](auto element) {
    using T = decltype(element);
    QuantizeRows<T>(context, SwiGluRows<T>{static_cast<const T*>(gate_up.data)}, gate_up.dim(0),
                    gate_up.dim(1) / 2, fixed_scale, out, scales);
  });
}

}  // namespace tandem::ops::cuda
