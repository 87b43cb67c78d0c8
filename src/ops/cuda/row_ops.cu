// The row functions that a Llama's layers do not have: norms in every form, sums, activations and
// capped logits: plain code, for families whose other ops take the time.
#include <algorithm>

#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/block_reduce.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/linear/add_rms_norm.cuh"
#include "ops/cuda/row_ops.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0U, value, distance);
  }
  return value;
}

// Norm with the pointers of a row's part.
template <typename T>
struct NormArguments {
  const T* weight;  // null: ones
  const T* bias;    // null: zeros
  float epsilon;
  float weight_offset;
  bool subtract_mean;
};

template <typename T>
NormArguments<T> ArgumentsOf(const Norm& norm) {
  return {static_cast<const T*>(norm.weight.data), static_cast<const T*>(norm.bias.data),
          norm.epsilon, norm.weight_offset, norm.kind == Norm::Kind::kLayer};
}

// out = norm(x), by `lanes` threads, of which this is the lane-th, in pieces of kCount elements;
// out may be x. sum(value): over all of them.
template <int kCount, typename T, typename Sum>
__device__ void NormRow(int lane, int lanes, const Sum& sum, const T* x, int64_t width,
                        const NormArguments<T>& norm, int64_t weight_begin, T* out) {
  const auto count = static_cast<float>(width);
  const auto for_pieces = [&](const auto& visit) {
    for (int64_t i = int64_t{lane} * kCount; i < width; i += int64_t{lanes} * kCount) {
      visit(i, LoadPack<T, kCount>(x + i));
    }
  };
  float mean = 0.0f;
  if (norm.subtract_mean) {
    float own = 0.0f;
    for_pieces([&](int64_t, const Pack<T, kCount>& piece) {
#pragma unroll
      for (const T& value : piece.at) own += ToFloat(value);
    });
    mean = sum(own) / count;
  }
  float squares = 0.0f;
  for_pieces([&](int64_t, const Pack<T, kCount>& piece) {
#pragma unroll
    for (const T& value : piece.at) {
      const float around = ToFloat(value) - mean;
      squares = fmaf(around, around, squares);
    }
  });
  const float inverse = 1.0f / sqrtf(sum(squares) / count + norm.epsilon);
  for_pieces([&](int64_t i, Pack<T, kCount> piece) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      float y = (ToFloat(piece.at[e]) - mean) * inverse;
      const int64_t at = weight_begin + i + e;
      if (norm.weight != nullptr) y *= ToFloat(norm.weight[at]) + norm.weight_offset;
      if (norm.bias != nullptr) y += ToFloat(norm.bias[at]);
      piece.at[e] = FromFloat<T>(y);
    }
    StorePack(out + i, piece);
  });
}

__global__ void __launch_bounds__(kThreads) ClearKernel(int64_t* out, int64_t count) {
  BeginKernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = 0;
}

// A block has a row.
template <int kCount, typename T>
__global__ void __launch_bounds__(kThreads)
    AddNormRowsKernel(T* residual, const T* delta, float residual_scale, int64_t hidden,
                      const NormArguments<T> norm, T* out) {
  BeginKernel();
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  residual += row * hidden;
  if (delta != nullptr) {
    for (int64_t i = int64_t{thread} * kCount; i < hidden; i += int64_t{kThreads} * kCount) {
      Pack<T, kCount> sum = LoadPack<T, kCount>(residual + i);
      const Pack<T, kCount> added = LoadPack<T, kCount>(delta + row * hidden + i);
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        sum.at[e] = FromFloat<T>(ToFloat(sum.at[e]) * residual_scale + ToFloat(added.at[e]));
      }
      StorePack(residual + i, sum);
    }
  }
  const auto sum = [](float value) {
    value = BlockSum(value);
    __syncthreads();  // all have the sum
    return value;
  };
  NormRow<kCount>(thread, kThreads, sum, residual, hidden, norm, 0, out + row * hidden);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    NormHeadsKernel(T* qkv, int64_t rows, int64_t row_stride, int64_t parts, int64_t width,
                    bool shared, const NormArguments<T> norm) {
  BeginKernel();
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= rows * parts) return;
  const int64_t part = index % parts;
  T* const x = qkv + index / parts * row_stride + part * width;
  NormRow<1>(
      static_cast<int>(threadIdx.x) % 32, 32, [](float value) { return WarpSum(value); }, x, width,
      norm, shared ? 0 : part * width, x);
}

// A warp has the queries or the keys of a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumHeadSquaresKernel(const T* qkv, int64_t rows, int64_t row_stride, int64_t queries,
                         int64_t keys, float* sums) {
  BeginKernel();
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= rows * 2) return;
  const bool of_keys = index % 2 != 0;
  const T* const x = qkv + index / 2 * row_stride + (of_keys ? queries : 0);
  float squares = 0.0f;
  for (int64_t i = threadIdx.x % 32; i < (of_keys ? keys : queries); i += 32) {
    const float value = ToFloat(x[i]);
    squares = fmaf(value, value, squares);
  }
  squares = WarpSum(squares);
  if (threadIdx.x % 32 == 0) sums[index] = squares;
}

// Columns of a row, and their norm by a mean over `count` of them.
template <typename T>
struct NormedColumns {
  const T* weight;
  int64_t columns;
  float count;
  float epsilon;
  float weight_offset;
};

// A block has a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    NormHeadsBySumsKernel(T* qkv, int64_t row_stride, const NormedColumns<T> queries,
                          const NormedColumns<T> keys, const float* sums) {
  BeginKernel();
  const int64_t row = blockIdx.x;
  T* x = qkv + row * row_stride;
  const auto apply = [&](const NormedColumns<T>& norm, float sum) {
    const float inverse = 1.0f / sqrtf(sum / norm.count + norm.epsilon);
    for (int64_t i = threadIdx.x; i < norm.columns; i += kThreads) {
      x[i] = FromFloat<T>(ToFloat(x[i]) * inverse * (ToFloat(norm.weight[i]) + norm.weight_offset));
    }
    x += norm.columns;
  };
  apply(queries, sums[2 * row]);
  apply(keys, sums[2 * row + 1]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) AddKernel(T* sum, const T* x, int64_t count) {
  BeginKernel();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    sum[i] = FromFloat<T>(ToFloat(sum[i]) + ToFloat(x[i]));
  }
}

__device__ float Apply(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu:
      return fmaxf(x, 0.0f);
    case Activation::kClampedSwiglu:  // GatedOf
      break;
  }
  return x;
}

__device__ float GatedOf(Activation activation, float limit, float gate, float up) {
  if (activation != Activation::kClampedSwiglu) return Apply(activation, gate) * up;
  gate = fminf(gate, limit);
  return gate / (1.0f + expf(-1.702f * gate)) * (fminf(fmaxf(up, -limit), limit) + 1.0f);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ActivateKernel(Activation activation, float limit, const T* in, int64_t width, bool gated,
                   int64_t count, T* out) {
  BeginKernel();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const T* const row = in + i / width * (gated ? 2 : 1) * width + i % width;
    const float x = ToFloat(row[0]);
    out[i] = FromFloat<T>(gated ? GatedOf(activation, limit, x, ToFloat(row[width]))
                                : Apply(activation, x));
  }
}

__global__ void __launch_bounds__(kThreads)
    CapKernel(float* x, int64_t count, float scale, float cap) {
  BeginKernel();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const float y = x[i] * scale;
    x[i] = cap == 0.0f ? y : cap * tanhf(y / cap);
  }
}

unsigned BlocksFor(const Context& context, int64_t count) {
  return static_cast<unsigned>(
      std::min(CeilDiv(count, kThreads), int64_t{16} * std::max(context.num_sms, 1)));
}
unsigned BlocksOfWarps(int64_t warps) { return static_cast<unsigned>(CeilDiv(warps, kWarps)); }

void AddNormRows(const Context& context, const NormedRows& x) {
  const int64_t rows = x.residual.dim(0);
  if (rows == 0) return;
  WithActivation(x.rows.dtype, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&]<int kCount>() {
      LaunchEarly(context, "AddNorm", AddNormRowsKernel<kCount, T>,
                  dim3(static_cast<unsigned>(rows)), kThreads, 0, static_cast<T*>(x.residual.data),
                  static_cast<const T*>(x.delta.data), x.residual_scale, x.residual.dim(1),
                  ArgumentsOf<T>(x.norm), static_cast<T*>(x.rows.data));
    };
    HasPieces(x.residual.dim(1), x.residual.data, x.delta.data, x.rows.data)
        ? launch.template operator()<8>()
        : launch.template operator()<1>();
  });
}

}  // namespace

void CudaOps::AddNorm(const NormedRows& x) {
  TANDEM_CHECK(x.residual.dtype == x.rows.dtype && x.norm.weight.dtype == x.rows.dtype,
               "the types differ");
  IsPlainNorm(x) ? AddRmsNorm(context_, x) : AddNormRows(context_, x);
}

void ActivateRows(const Context& context, Activation activation, float limit, const Tensor& in,
                  const Tensor& out) {
  const int64_t count = out.NumElements();
  if (count == 0) return;
  WithActivation(out.dtype, [&](auto element) {
    using T = decltype(element);
    LaunchEarly(context, "Activate", ActivateKernel<T>, dim3(BlocksFor(context, count)), kThreads,
                0, activation, limit, static_cast<const T*>(in.data), out.dim(1),
                in.dim(1) != out.dim(1), count, static_cast<T*>(out.data));
  });
}

void CudaOps::Add(const Tensor& residual, const Tensor& delta) {
  TANDEM_CHECK(residual.dtype == delta.dtype && residual.shape == delta.shape,
               "what is added has another shape");
  const int64_t count = residual.NumElements();
  if (count == 0) return;
  WithActivation(residual.dtype, [&](auto element) {
    using T = decltype(element);
    LaunchEarly(context_, "Add", AddKernel<T>, dim3(BlocksFor(context_, count)), kThreads, 0,
                static_cast<T*>(residual.data), static_cast<const T*>(delta.data), count);
  });
}

void CudaOps::ClearSquares(const Tensor& squares) {
  if (context_.batch_invariant) return;  // nothing is added to them
  const int64_t count = squares.NumElements();
  LaunchEarly(context_, "ClearSquares", ClearKernel,
              dim3(static_cast<unsigned>(CeilDiv(count, kThreads))), kThreads, 0,
              squares.As<int64_t>(), count);
}

void CudaOps::NormHeads(const Tensor& qkv, int64_t first_column, int64_t num_columns, int64_t width,
                        const Norm& norm) {
  TANDEM_CHECK(num_columns % width == 0 && first_column + num_columns <= qkv.dim(1),
               "heads beyond the row");
  const int64_t rows = qkv.dim(0), parts = num_columns / width;
  if (rows == 0) return;
  WithActivation(qkv.dtype, [&](auto element) {
    using T = decltype(element);
    LaunchEarly(context_, "NormHeads", NormHeadsKernel<T>, dim3(BlocksOfWarps(rows * parts)),
                kThreads, 0, static_cast<T*>(qkv.data) + first_column, rows, qkv.dim(1), parts,
                width, norm.weight.NumElements() == width, ArgumentsOf<T>(norm));
  });
}

void CudaOps::SumHeadSquares(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums) {
  const int64_t rows = qkv.dim(0);
  if (rows == 0) return;
  WithActivation(qkv.dtype, [&](auto element) {
    using T = decltype(element);
    LaunchEarly(context_, "SumHeadSquares", SumHeadSquaresKernel<T>, dim3(BlocksOfWarps(2 * rows)),
                kThreads, 0, static_cast<const T*>(qkv.data), rows, qkv.dim(1), norms.queries.count,
                norms.keys.count, sums.As<float>());
  });
}

void CudaOps::NormHeadsBySums(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums,
                              int ranks) {
  const int64_t rows = qkv.dim(0);
  if (rows == 0) return;
  WithActivation(qkv.dtype, [&](auto element) {
    using T = decltype(element);
    const auto of = [&](const HeadNorms::Columns& columns) {
      const Norm& norm = columns.norm;
      TANDEM_CHECK(norm.kind == Norm::Kind::kRms && norm.weight.NumElements() == columns.count,
                   "ranks norm heads by their root mean square, with a weight for each column");
      return NormedColumns<T>{static_cast<const T*>(norm.weight.data), columns.count,
                              static_cast<float>(ranks * columns.count), norm.epsilon,
                              norm.weight_offset};
    };
    LaunchEarly(context_, "NormHeadsBySums", NormHeadsBySumsKernel<T>,
                dim3(static_cast<unsigned>(rows)), kThreads, 0, static_cast<T*>(qkv.data),
                qkv.dim(1), of(norms.queries), of(norms.keys),
                static_cast<const float*>(sums.As<float>()));
  });
}

void CudaOps::CapLogits(const Tensor& logits, float scale, float cap) {
  TANDEM_CHECK(logits.dtype == DType::kF32, "logits are fp32");
  const int64_t count = logits.NumElements();
  if (count == 0) return;
  LaunchEarly(context_, "CapLogits", CapKernel, dim3(BlocksFor(context_, count)), kThreads, 0,
              logits.As<float>(), count, scale, cap);
}

}  // namespace tandem::ops::cuda
