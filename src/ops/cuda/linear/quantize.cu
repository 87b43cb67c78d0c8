#include <algorithm>
#include <type_traits>

#include "ops/cuda/device/block_reduce.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/linear/linear_fragments.cuh"
#include "ops/cuda/linear/quantize.cuh"
#include "ops/cuda/linear/rounded_rows.cuh"
#include "ops/cuda/linear/swiglu.cuh"

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
template <typename To, typename T>
__global__ void __launch_bounds__(kThreads)
    QuantizeWeightKernel(const T* rows, int64_t cols, uint8_t* out, int64_t pitch, float* scales) {
  const int64_t row = blockIdx.x;
  const T* const from = rows + row * cols;
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    largest = fmaxf(largest, fabsf(AsFloat(from[i])));
  }
  const float scale = ScaleOf(BlockMax(largest), To::kMax);
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    out[row * pitch + i] = To::Round(AsFloat(from[i]) / scale);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

// The place of a row's scale or zero point of a group.
__device__ int64_t Int4FactorPlace(const Int4Layout& layout, int64_t row, int64_t group) {
  const int64_t tile = row / kInt4TileRows;
  const int64_t in_tile = row % kInt4TileRows;
  return ((tile * layout.groups + group) * 8 + in_tile % 8) * 2 + in_tile / 8;
}

__device__ int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// The scale of each group of a row, by a warp.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    Int4ScaleKernel(const T* rows, int64_t num_rows, const Int4Layout layout, int64_t first_row,
                    float* scales) {
  const int64_t row = ThreadIndex() / 32 / layout.groups;
  const int64_t group = ThreadIndex() / 32 % layout.groups;
  if (row >= num_rows) return;
  const int64_t width = layout.block_columns == 0 ? layout.cols : layout.block_columns;
  const int64_t end = min((group + 1) * width, layout.cols);
  float largest = 0.0f;
  for (int64_t col = group * width + threadIdx.x % 32; col < end; col += 32) {
    largest = fmaxf(largest, fabsf(AsFloat(rows[row * layout.cols + col])));
  }
  const uint32_t bits = __reduce_max_sync(~0U, __float_as_uint(largest));
  if (threadIdx.x % 32 == 0) {
    scales[Int4FactorPlace(layout, first_row + row, group)] =
        ScaleOf(__uint_as_float(bits), kInt4Max);
  }
}

// Elements of 4 bits of a row: as stored, or rounded by the scales that Int4ScaleKernel found. Zero
// after the last column.
struct StoredInt4 {
  const uint8_t* pairs;
  int64_t cols;
  __device__ uint32_t At(int64_t row, int64_t col) const {
    if (col >= cols) return 0;
    return pairs[(row * cols + col) / 2] >> (col % 2 * 4) & 15;
  }
};
template <typename T>
struct RoundedInt4 {
  const T* rows;
  Int4Layout layout;
  int64_t first_row;
  const float* scales;
  __device__ uint32_t At(int64_t row, int64_t col) const {
    if (col >= layout.cols) return 0;
    const int64_t group = layout.block_columns == 0 ? 0 : col / layout.block_columns;
    const float scale = scales[Int4FactorPlace(layout, first_row + row, group)];
    const float value = AsFloat(rows[row * layout.cols + col]) / scale;
    return static_cast<uint32_t>(__float2int_rn(fminf(fmaxf(value, -kInt4Max), kInt4Max)) +
                                 static_cast<int>(kInt4Middle));
  }
};

// A thread makes the half of a lane's piece that belongs to a row.
template <typename Elements>
__global__ void __launch_bounds__(kThreads)
    TileInt4Kernel(const Elements elements, int64_t num_rows, const Int4Layout layout,
                   int64_t first_row, uint2* tiles) {
  const auto quad = static_cast<int>(ThreadIndex() % 4);
  const int64_t unit = ThreadIndex() / 4 % layout.units;
  const int64_t row = ThreadIndex() / 4 / layout.units;
  if (row >= num_rows) return;
  uint32_t words[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t col = unit * kInt4UnitCols + PieceCol<Int4<1>>(quad, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[half] |= elements.At(row, col + 2 * i) << (4 * i) | elements.At(row, col + 2 * i + 1)
                                                                    << (16 + 4 * i);
    }
  }
  const int64_t in_tile = (first_row + row) % kInt4TileRows;
  const int64_t tile = (first_row + row) / kInt4TileRows;
  const int64_t lane = in_tile % 8 * 4 + quad;
  tiles[((tile * layout.units + unit) * 32 + lane) * 2 + in_tile / 8] =
      make_uint2(words[0], words[1]);
}

// row_values: how many scales a row has; 0: one for all rows.
__global__ void __launch_bounds__(kThreads)
    TileInt4FactorsKernel(int64_t num_rows, const float* scales, const uint8_t* zeros,
                          int64_t row_values, uint16_t base, const Int4Layout layout,
                          int64_t first_row, float* tiled_scales, uint16_t* tiled_zeros) {
  const int64_t row = ThreadIndex() / layout.groups;
  const int64_t group = ThreadIndex() % layout.groups;
  if (row >= num_rows || (row_values > 0 && group >= row_values)) return;
  const int64_t from = row_values == 0 ? 0 : row * row_values + group;
  const int64_t to = Int4FactorPlace(layout, first_row + row, group);
  tiled_scales[to] = scales[from];
  if (zeros != nullptr) tiled_zeros[to] = static_cast<uint16_t>(base + zeros[from]);
}

unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>(CeilDiv(threads, kThreads)); }

// Calls call(from) with the rows' data in its type.
template <typename Call>
void WithRows(const Tensor& rows, const Call& call) {
  switch (rows.dtype) {
    case DType::kBF16:
      return call(static_cast<const Bf16*>(rows.data));
    case DType::kF16:
      return call(static_cast<const Fp16*>(rows.data));
    case DType::kF32:
      return call(static_cast<const float*>(rows.data));
    default:
      TANDEM_CHECK(false, "weights to round are floating-point numbers");
  }
}

// Rows of activations in pieces of eight: as they are, or the SwiGLU of rows (gate, up).
// kFitsIn32Registers: whether 32 registers are enough to make a piece while two are kept.
template <typename T>
struct PlainRows {
  static constexpr bool kFitsIn32Registers = true;
  const T* rows;
  __device__ Pack<T, 8> At(int64_t row, int cols, int piece) const {
    return LoadPack<T, 8>(rows + row * cols + piece * 8);
  }
};
template <typename T>
struct SwiGluRows {
  static constexpr bool kFitsIn32Registers = std::is_same_v<T, Bf16>;
  const T* gate_up;
  __device__ Pack<T, 8> At(int64_t row, int cols, int piece) const {
    const T* const gate = gate_up + row * 2 * cols + piece * 8;
    return SwiGluOf(LoadPack<T, 8>(gate), LoadPack<T, 8>(gate + cols));
  }
};

// A sum of integers as a value of the product.
__device__ inline float ScaledSum(int sum, float token_scale, float row_scale, float bias) {
  return __fadd_rn(static_cast<float>(sum) * token_scale * row_scale, bias);
}

__device__ inline float4 ScaledSums(const IntegerSums& product, int64_t at, float token_scale,
                                    int row) {
  const int4 sum = *reinterpret_cast<const int4*>(product.sums + at);
  const float4 scale = *reinterpret_cast<const float4*>(product.row_scales + row);
  const float4 bias = product.bias == nullptr
                          ? make_float4(-0.0f, -0.0f, -0.0f, -0.0f)
                          : *reinterpret_cast<const float4*>(product.bias + row);
  return make_float4(ScaledSum(sum.x, token_scale, scale.x, bias.x),
                     ScaledSum(sum.y, token_scale, scale.y, bias.y),
                     ScaledSum(sum.z, token_scale, scale.z, bias.z),
                     ScaledSum(sum.w, token_scale, scale.w, bias.w));
}

// The SwiGLU of a product (gate, up) before it is scaled.
template <typename T>
struct SwiGluSums {
  static constexpr bool kFitsIn32Registers = false;
  IntegerSums gate_up;
  __device__ Pack<T, 8> At(int64_t row, int cols, int piece) const {
    const float token_scale = gate_up.token_scales[row];
    const auto values = [&](int first) {
      Pack<T, 8> result;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = first + 4 * half;
        const float4 four = ScaledSums(gate_up, row * 2 * cols + at, token_scale, at);
        result.at[4 * half] = FromFloat<T>(four.x);
        result.at[4 * half + 1] = FromFloat<T>(four.y);
        result.at[4 * half + 2] = FromFloat<T>(four.z);
        result.at[4 * half + 3] = FromFloat<T>(four.w);
      }
      return result;
    };
    return SwiGluOf(values(piece * 8), values(cols + piece * 8));
  }
};

// One block per row. kKept: pieces that a thread keeps between finding the largest value and
// rounding; it asks for the others twice. With two, 32 registers suffice on sm_90 and a
// multiprocessor holds two blocks of the most threads, so that many rows are read and written
// faster.
template <typename To, typename T, typename Rows, int kKept>
__global__ void __launch_bounds__(kMaxThreads, kKept == 2 ? kThreadsPerSm / kMaxThreads : 1)
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
  if (To::kNeedsLargest || fixed_scale == 0.0f) {
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < kKept; ++k) largest = LargestOf<To>(kept[k], largest);
    for (int i = kKept * threads + static_cast<int>(threadIdx.x); i < pieces; i += threads) {
      largest = LargestOf<To>(rows.At(row, cols, i), largest);
    }
    scale = To::ScaleOfRow(BlockMax(largest), fixed_scale);
  }
  const float inverse = 1.0f / scale;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = k * threads + static_cast<int>(threadIdx.x);
    if (i < pieces) to[i] = RoundPiece<To>(kept[k], inverse);
  }
  for (int i = kKept * threads + static_cast<int>(threadIdx.x); i < pieces; i += threads) {
    to[i] = RoundPiece<To>(rows.At(row, cols, i), inverse);
  }
  if (threadIdx.x == 0) scales[row] = scale;
}

template <typename T, typename Rows>
void QuantizeRows(const Context& context, const Rows& rows, int64_t num_rows, int64_t cols,
                  DType to, float fixed_scale, void* out, float* scales) {
  const auto launch = [&]<int kKept>() {
    const int64_t warps = std::clamp<int64_t>(CeilDiv(cols, 8 * 32 * kKept), 4, kMaxThreads / 32);
    LaunchEarly(context, "rounding activations",
                to == DType::kI8 ? QuantizeActivationKernel<ToInt8, T, Rows, kKept>
                                 : QuantizeActivationKernel<ToFp8, T, Rows, kKept>,
                dim3(static_cast<unsigned>(num_rows)), 32 * warps, 0, rows, static_cast<int>(cols),
                fixed_scale, static_cast<uint8_t*>(out), scales);
  };
  if constexpr (Rows::kFitsIn32Registers) {
    if (cols <= 2 * 8 * kMaxThreads) return launch.template operator()<2>();
  }
  launch.template operator()<4>();
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ArrangeInputsKernel(const T* x, int64_t count, int64_t cols, const int32_t* order,
                        const float* factors, T* out) {
  const int64_t i = ThreadIndex();
  BeginKernel();
  if (i >= count) return;
  const int64_t col = i % cols;
  const int64_t from = order == nullptr ? col : order[col];
  const T value = x[i - col + from];
  out[i] = factors == nullptr ? value : FromFloat<T>(ToFloat(value) * factors[from]);
}

// A thread makes four results of a token.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ScaleSumsKernel(const IntegerSums product, int64_t count, int fours, void* out,
                    bool float_out) {
  const int64_t i = ThreadIndex();
  BeginKernel();
  if (i >= count) return;
  const float4 values =
      ScaledSums(product, 4 * i, product.token_scales[i / fours], 4 * static_cast<int>(i % fours));
  if (float_out) {
    StoreFour(static_cast<float*>(out) + 4 * i, values);
  } else {
    StoreFour(static_cast<T*>(out) + 4 * i, values);
  }
}

}  // namespace

void QuantizeWeightRows(const Context& context, const Tensor& rows, DType to, void* out,
                        int64_t pitch, float* scales) {
  WithRows(rows, [&](const auto* from) {
    using T = std::remove_cvref_t<decltype(*from)>;
    const auto kernel =
        to == DType::kI8 ? QuantizeWeightKernel<ToInt8, T> : QuantizeWeightKernel<ToFp8, T>;
    kernel<<<static_cast<unsigned>(rows.dim(0)), kThreads, 0, context.stream>>>(
        from, rows.dim(1), static_cast<uint8_t*>(out), pitch, scales);
  });
  CheckLaunch("rounding weights");
}

void QuantizeInt4Rows(const Context& context, const Tensor& rows, const Int4Layout& layout,
                      int64_t first_row, void* tiles, float2* scales) {
  const int64_t count = rows.dim(0);
  WithRows(rows, [&](const auto* from) {
    using T = std::remove_cvref_t<decltype(*from)>;
    Int4ScaleKernel<T><<<BlocksFor(count * layout.groups * 32), kThreads, 0, context.stream>>>(
        from, count, layout, first_row, reinterpret_cast<float*>(scales));
    TileInt4Kernel<<<BlocksFor(count * layout.units * 4), kThreads, 0, context.stream>>>(
        RoundedInt4<T>{from, layout, first_row, reinterpret_cast<const float*>(scales)}, count,
        layout, first_row, static_cast<uint2*>(tiles));
  });
  CheckLaunch("rounding weights");
}

void TileInt4Rows(const Context& context, const Tensor& rows, const Int4Layout& layout,
                  int64_t first_row, void* tiles) {
  const int64_t count = rows.dim(0);
  TileInt4Kernel<<<BlocksFor(count * layout.units * 4), kThreads, 0, context.stream>>>(
      StoredInt4{static_cast<const uint8_t*>(rows.data), layout.cols}, count, layout, first_row,
      static_cast<uint2*>(tiles));
  CheckLaunch("arranging weights");
}

void TileInt4Factors(const Context& context, int64_t num_rows, const Tensor& scales,
                     const Tensor& zeros, DType activations, const Int4Layout& layout,
                     int64_t first_row, float2* tiled_scales, uint32_t* tiled_zeros) {
  const int64_t values = scales.NumElements();
  const auto base =
      static_cast<uint16_t>(activations == DType::kBF16 ? kInt4Base<Bf16> : kInt4Base<Fp16>);
  TileInt4FactorsKernel<<<BlocksFor(num_rows * layout.groups), kThreads, 0, context.stream>>>(
      num_rows, static_cast<const float*>(scales.data), static_cast<const uint8_t*>(zeros.data),
      values == 1 ? 0 : values / num_rows, base, layout, first_row,
      reinterpret_cast<float*>(tiled_scales), reinterpret_cast<uint16_t*>(tiled_zeros));
  CheckLaunch("arranging the scales of weights");
}

void QuantizeActivations(const Context& context, const Tensor& x, DType to, float fixed_scale,
                         void* out, float* scales) {
  WithActivation(x.dtype, [&](auto element) {
    using T = decltype(element);
    QuantizeRows<T>(context, PlainRows<T>{static_cast<const T*>(x.data)}, x.dim(0), x.dim(1), to,
                    fixed_scale, out, scales);
  });
}

void QuantizeSwiGlu(const Context& context, const Tensor& gate_up, DType to, float fixed_scale,
                    void* out, float* scales) {
  WithActivation(gate_up.dtype, [&](auto element) {
    using T = decltype(element);
    QuantizeRows<T>(context, SwiGluRows<T>{static_cast<const T*>(gate_up.data)}, gate_up.dim(0),
                    gate_up.dim(1) / 2, to, fixed_scale, out, scales);
  });
}

void QuantizeSwiGluSums(const Context& context, const IntegerSums& gate_up, DType activations,
                        int64_t n, int64_t cols, float fixed_scale, void* out, float* scales) {
  WithActivation(activations, [&](auto element) {
    using T = decltype(element);
    QuantizeRows<T>(context, SwiGluSums<T>{gate_up}, n, cols, DType::kI8, fixed_scale, out, scales);
  });
}

void ArrangeInputs(const Context& context, const Tensor& x, const int32_t* order,
                   const float* factors, void* out) {
  const int64_t count = x.NumElements();
  WithActivation(x.dtype, [&](auto element) {
    using T = decltype(element);
    LaunchEarly(context, "arranging a product's inputs", ArrangeInputsKernel<T>,
                dim3(BlocksFor(count)), kThreads, 0, static_cast<const T*>(x.data), count, x.dim(1),
                order, factors, static_cast<T*>(out));
  });
}

void ScaleSums(const Context& context, const IntegerSums& product, DType activations,
               const Tensor& out) {
  const int64_t count = out.NumElements() / 4;
  WithActivation(activations, [&](auto element) {
    LaunchEarly(context, "scaling sums of integers", ScaleSumsKernel<decltype(element)>,
                dim3(BlocksFor(count)), kThreads, 0, product, count,
                static_cast<int>(out.dim(1) / 4), out.data, out.dtype == DType::kF32);
  });
}

}  // namespace tandem::ops::cuda
