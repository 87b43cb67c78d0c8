// AddNorm of a plain norm as one kernel, which may round its result to fp8 or int8: one block per
// row; the row is read once if it fits the block's registers.
#include <algorithm>

#include "ops/cuda/device/block_reduce.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/linear/add_rms_norm.cuh"
#include "ops/cuda/linear/rounded_rows.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kMaxThreads = 1024;

// Where the normed rows go: as they are, or rounded with a scale each.
template <typename T>
struct PlainResult {
  using To = void;
  T* rows;
};
template <typename To_>
struct RoundedResult {
  using To = To_;
  uint8_t* rows;
  float* scales;
  float fixed_scale;  // 0: each row by its own largest value
};

// Mostly a multiprocessor holds two blocks of 1,024 threads; with one, many rows are slower.
template <typename T, int kCount, typename Result>
__global__ void __launch_bounds__(kMaxThreads, kThreadsPerSm / kMaxThreads)
    AddRmsNormKernel(T* residual, const T* delta, const T* weight, int hidden, float epsilon,
                     const Result result) {
  using Piece = Pack<T, kCount>;
  const int64_t row = blockIdx.x * int64_t{hidden};
  residual += row;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int pieces = hidden / kCount;
  // Rows that give each thread one piece stay in registers.
  const bool keep = pieces <= threads;
  Piece x{}, w{};
  if (keep && thread < pieces) w = LoadPack<T, kCount>(weight + thread * kCount);
  BeginKernel();
  float squares = 0.0f;
  for (int i = thread; i < pieces; i += threads) {
    x = LoadPack<T, kCount>(residual + i * kCount);
    if (delta != nullptr) {
      const Piece d = LoadPack<T, kCount>(delta + row + i * kCount);
#pragma unroll
      for (int e = 0; e < kCount; ++e) x.at[e] = FromFloat<T>(ToFloat(x.at[e]) + ToFloat(d.at[e]));
      StorePack<T, kCount>(residual + i * kCount, x);
    }
#pragma unroll
    for (int e = 0; e < kCount; ++e) squares = fmaf(ToFloat(x.at[e]), ToFloat(x.at[e]), squares);
  }
  const float mean = BlockSum(squares) / static_cast<float>(hidden);
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  const auto normed = [&](int i) {
    if (!keep) {
      x = LoadPack<T, kCount>(residual + i * kCount);
      w = LoadPack<T, kCount>(weight + i * kCount);
    }
    Piece y;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      y.at[e] = FromFloat<T>(ToFloat(x.at[e]) * inverse * ToFloat(w.at[e]));
    }
    return y;
  };
  using To = typename Result::To;
  if constexpr (!std::is_void_v<To>) {
    float scale = result.fixed_scale;
    if (To::kNeedsLargest || scale == 0.0f) {
      float largest = 0.0f;
      for (int i = thread; i < pieces; i += threads) {
        largest = LargestOf<To>(normed(i), largest);
      }
      scale = To::ScaleOfRow(BlockMax(largest), scale);
    }
    const float by = 1.0f / scale;
    auto* const out = reinterpret_cast<uint2*>(result.rows + row);
    for (int i = thread; i < pieces; i += threads) out[i] = RoundPiece<To>(normed(i), by);
    if (thread == 0) result.scales[blockIdx.x] = scale;
  } else {
    T* const out = result.rows + row;
    for (int i = thread; i < pieces; i += threads) {
      StorePack<T, kCount>(out + i * kCount, normed(i));
    }
  }
}

template <typename T, int kCount, typename Result>
void LaunchNorm(const Context& context, const Tensor& residual, const Tensor& delta,
                const Tensor& weight, float epsilon, const Result& result) {
  const int64_t hidden = residual.dim(1);
  const int64_t warps = std::clamp<int64_t>(CeilDiv(hidden / kCount, 32), 1, kMaxThreads / 32);
  LaunchEarly(context, "AddRmsNorm", AddRmsNormKernel<T, kCount, Result>,
              dim3(static_cast<unsigned>(residual.dim(0))), 32 * warps, 0,
              static_cast<T*>(residual.data), static_cast<const T*>(delta.data),
              static_cast<const T*>(weight.data), static_cast<int>(hidden), epsilon, result);
}

}  // namespace

bool IsPlainNorm(const NormedRows& x) {
  return x.norm.kind == Norm::Kind::kRms && x.norm.weight_offset == 0.0f && x.norm.bias.empty() &&
         x.residual_scale == 1.0f;
}

void AddRmsNorm(const Context& context, const NormedRows& x) {
  TANDEM_CHECK(IsPlainNorm(x), "an RMS norm with a weight alone");
  if (x.residual.dim(0) == 0) return;
  WithActivation(x.rows.dtype, [&](auto element) {
    using T = decltype(element);
    const PlainResult<T> result = {static_cast<T*>(x.rows.data)};
    const auto launch = [&]<int kCount>() {
      LaunchNorm<T, kCount>(context, x.residual, x.delta, x.norm.weight, x.norm.epsilon, result);
    };
    // An odd width leaves rows misaligned.
    x.residual.dim(1) % 8 == 0 ? launch.template operator()<8>() : launch.template operator()<1>();
  });
}

void QuantizeNorm(const Context& context, const NormedRows& x, DType to, float fixed_scale,
                  void* out, float* scales) {
  TANDEM_CHECK(IsPlainNorm(x), "an RMS norm with a weight alone");
  WithActivation(x.residual.dtype, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](const auto& result) {
      LaunchNorm<T, 8>(context, x.residual, x.delta, x.norm.weight, x.norm.epsilon, result);
    };
    auto* const rows = static_cast<uint8_t*>(out);
    if (to == DType::kI8) {
      launch(RoundedResult<ToInt8>{rows, scales, fixed_scale});
    } else {
      launch(RoundedResult<ToFp8>{rows, scales, fixed_scale});
    }
  });
}

}  // namespace tandem::ops::cuda
