// One warp's part of attention: 16 x kTiles query rows against 32 keys at a time on the tensor
// cores (mma m16n8k16), with the running maximum and sum in fp32. Every kernel consists of these
// steps, so a row's arithmetic depends only on where its chunks of keys begin.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device/async_copy.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/device/mma.cuh"

namespace tandem::ops::cuda {

constexpr int kStepKeys = 32;
constexpr unsigned kAllLanes = ~0u;

// The types and sizes of a kernel. T: activations; Stored: the pool's elements; kWithRule: scores
// are subject to params' rule.
template <typename T, typename Stored, int kDim, bool kWithRule>
struct HeadKind {
  static constexpr bool kHasRule = kWithRule;
  using Activation = T;
  using Element = Stored;
  static constexpr bool kFp8 = std::is_same_v<Stored, Fp8>;
  // fp8 is converted to fp16 exactly and in one instruction, so it is multiplied in fp16.
  using Compute = std::conditional_t<kFp8, Fp16, T>;
  static constexpr int kHeadDim = kDim;
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(Stored));
  static constexpr int kRowPieces = kRowBytes / 16;  // 16-byte pieces of a key or value
  static constexpr int kQueryPieces = kDim * 2 / 16;
  static constexpr int kStepBytes = kStepKeys * kRowBytes;  // of 32 keys, or of 32 values
};

// ---- Shared memory ----

// Which bits of a piece's number are flipped in row `row`, so that the pieces of eight rows in one
// column are always in different banks.
template <int kPieces>
__device__ constexpr int PieceSwap(int row) {
  constexpr int kPower = kPieces % 8 == 0 ? 8 : kPieces % 4 == 0 ? 4 : kPieces % 2 == 0 ? 2 : 1;
  constexpr int kShift = kPower == 8 ? 0 : kPower == 4 ? 1 : kPower == 2 ? 2 : 3;
  return (row >> kShift) & (kPower - 1);
}
// Offset in bytes of 16-byte piece `piece` of row `row`.
template <int kPieces>
__device__ inline uint32_t PieceOffset(int row, int piece) {
  return static_cast<uint32_t>(row * kPieces + (piece ^ PieceSwap<kPieces>(row))) * 16;
}

// Where another piece of the same row lies: `pieces` further, if the address is that of piece 0 or
// of one that has no bit in common with `pieces`. The memory is aligned to 256 bytes.
__device__ inline uint32_t OtherPiece(uint32_t address, int pieces) {
  return address ^ static_cast<uint32_t>(pieces * 16);
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i.
__device__ inline void LoadMatrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void LoadMatricesTransposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// ---- Arithmetic ----

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Four fp8 as fp16: `low` has those of the low half, `high` the others.
__device__ inline void Fp8ToFp16(uint32_t bytes, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
  // Halves of a register are operands of their own: no shift.
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}\n"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
#else
  const auto convert = [](uint32_t pair) {
    const __half2_raw wide =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    return uint32_t{wide.x} | uint32_t{wide.y} << 16;
  };
  low = convert(bytes);
  high = convert(bytes >> 16);
#endif
}

template <typename T>
__device__ inline uint32_t PackPair(float x, float y) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// ---- Merging partial results ----

// The factors of two partial results of a row that make both relative to the larger of their
// maxima. A part that saw no key has the maximum -infinity and gets the factor 0.
struct MergeFactors {
  float max, total, part;
};
__device__ inline MergeFactors Factors(float total_max, float part_max, float scale) {
  const float max = fmaxf(total_max, part_max);
  const float base = max == -INFINITY ? 0.0f : max;
  return {max, Exp2((total_max - base) * scale), Exp2((part_max - base) * scale)};
}
// Written with intrinsics: contraction must be the same in every kernel.
__device__ inline float Merge(const MergeFactors& factors, float total, float part) {
  return __fmaf_rn(part, factors.part, __fmul_rn(total, factors.total));
}

// ---- A warp's rows ----

// Here lane = 4 g + t holds rows g and g + 8 of a tile ("half" 0 and 1).
template <int kTiles>
struct RowState {
  float max[kTiles][2];  // of the scores before scaling
  float sum[kTiles][2];  // of this lane's keys; of all after SumOverLanes
  __device__ void Reset() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      max[i][0] = max[i][1] = -INFINITY;
      sum[i][0] = sum[i][1] = 0.0f;
    }
  }
  __device__ void SumOverLanes() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[i][half] += __shfl_xor_sync(kAllLanes, sum[i][half], 1);
        sum[i][half] += __shfl_xor_sync(kAllLanes, sum[i][half], 2);
      }
    }
  }
};

template <typename Kind>
using RowOutput = float[Kind::kHeadDim / 8][4];

template <typename Kind, int kTiles>
__device__ inline void ResetOutput(RowOutput<Kind> (&output)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int n = 0; n < Kind::kHeadDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) output[i][n][e] = 0.0f;
    }
  }
}

// Calls use(dim, x, y) for each two neighbouring elements of the lane's part of row `half`. Columns
// of an fp8 tile are interleaved (see AddValues).
template <typename Kind, typename Use>
__device__ inline void ForEachPair(const RowOutput<Kind>& output, int half, const Use& use) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < Kind::kHeadDim / 16; ++j) {
    const float(&a)[4] = output[2 * j];
    const float(&b)[4] = output[2 * j + 1];
    if constexpr (Kind::kFp8) {
      use(16 * j + 4 * t, half ? a[2] : a[0], half ? b[2] : b[0]);
      use(16 * j + 4 * t + 2, half ? a[3] : a[1], half ? b[3] : b[1]);
    } else {
      use(16 * j + 2 * t, half ? a[2] : a[0], half ? a[3] : a[1]);
      use(16 * j + 8 + 2 * t, half ? b[2] : b[0], half ? b[3] : b[1]);
    }
  }
}

// Eight elements of a query in fp16. One in bf16 may exceed its range.
template <typename T>
__device__ inline uint4 QueriesInFp16(const T* from) {
  const Pack<T, 8> values = LoadPack<T, 8>(from);
  const auto pair = [&](int e) {
    const float x = fminf(fmaxf(ToFloat(values.at[e]), -65504.0f), 65504.0f);
    const float y = fminf(fmaxf(ToFloat(values.at[e + 1]), -65504.0f), 65504.0f);
    return PackPair<Fp16>(x, y);
  };
  return make_uint4(pair(0), pair(2), pair(4), pair(6));
}

// Loads `rows` query rows into shared memory; all `threads` threads take part. row_at(r): the row's
// head_dim elements, null for a row of zeros. In an fp8 kind the elements of 16 are permuted as the
// keys' bytes lie in a matrix: (0 1 4 5 8 9 12 13, 2 3 6 7 10 11 14 15).
template <typename Kind, typename RowAt>
__device__ inline void LoadQueries(std::byte* to, int rows, int thread, int threads,
                                   const RowAt& row_at) {
  using T = typename Kind::Activation;
  for (int i = thread; i < rows * Kind::kQueryPieces; i += threads) {
    const int row = i / Kind::kQueryPieces, piece = i % Kind::kQueryPieces;
    const T* from = row_at(row);
    uint4 bits = make_uint4(0, 0, 0, 0);
    if constexpr (Kind::kFp8) {
      if (from != nullptr) bits = QueriesInFp16(from + piece * 8);
      const int low = piece & ~1, bytes = (piece & 1) * 8;
      *reinterpret_cast<uint2*>(to + PieceOffset<Kind::kQueryPieces>(row, low) + bytes) =
          make_uint2(bits.x, bits.z);
      *reinterpret_cast<uint2*>(to + PieceOffset<Kind::kQueryPieces>(row, low + 1) + bytes) =
          make_uint2(bits.y, bits.w);
    } else {
      if (from != nullptr) bits = *reinterpret_cast<const uint4*>(from + piece * 8);
      *reinterpret_cast<uint4*>(to + PieceOffset<Kind::kQueryPieces>(row, piece)) = bits;
    }
  }
}

// scores = queries x keys^T. queries, keys: shared addresses of the warp's first row and of 32
// keys.
template <typename Kind, int kTiles>
__device__ inline void Scores(uint32_t queries, uint32_t keys, float (&scores)[kTiles][4][4]) {
  using T = typename Kind::Compute;
  const int lane = threadIdx.x % 32;
  const uint32_t query = queries + PieceOffset<Kind::kQueryPieces>(lane % 16, lane / 16);
  const uint32_t key =
      keys + (Kind::kFp8 ? PieceOffset<Kind::kRowPieces>(lane, 0)
                         : PieceOffset<Kind::kRowPieces>(lane % 8 + lane / 16 * 8, lane / 8 % 2));
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[i][n][e] = 0.0f;
    }
  }
#pragma unroll
  for (int k = 0; k < Kind::kHeadDim / 16; ++k) {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      LoadMatrices(a[i], OtherPiece(query, 2 * k) + 16 * i * Kind::kQueryPieces * 16);
    }
    if constexpr (Kind::kFp8) {
      // 16 bytes are 16 elements: one matrix is 8 keys x 16, four are all keys.
      uint32_t b[4];
      LoadMatrices(b, OtherPiece(key, k));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b0, b1;
        Fp8ToFp16(b[n], b0, b1);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) MultiplyAdd<T>(scores[i][n], a[i], b0, b1);
      }
    } else {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t b[4];
        LoadMatrices(b, OtherPiece(key, 2 * k) + 16 * pair * Kind::kRowBytes);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          MultiplyAdd<T>(scores[i][2 * pair], a[i], b[0], b[1]);
          MultiplyAdd<T>(scores[i][2 * pair + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
}

// Takes away the keys after the last that each row sees; key: the first of the 32.
template <int kTiles>
__device__ inline void MaskScores(int key, const int (&last_keys)[kTiles][2],
                                  float (&scores)[kTiles][4][4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (key + 8 * n + 2 * t + e % 2 > last_keys[i][e / 2]) scores[i][n][e] = -INFINITY;
      }
    }
  }
}

// Turns scores into weights relative to the new maximum, and rescales earlier sums likewise.
template <typename Kind, int kTiles>
__device__ inline void Softmax(float scale, float (&scores)[kTiles][4][4], RowState<kTiles>& state,
                               RowOutput<Kind> (&output)[kTiles],
                               uint32_t (&weights)[kTiles][2][4]) {
  using T = typename Kind::Compute;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    float old[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = state.max[i][half];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        max = fmaxf(max, fmaxf(scores[i][n][2 * half], scores[i][n][2 * half + 1]));
      }
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
      const float base = max == -INFINITY ? 0.0f : max;  // no key seen yet
      old[half] = Exp2((state.max[i][half] - base) * scale);
      state.max[i][half] = max;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          // The difference first: it is exact where precision matters, at the largest scores.
          scores[i][n][e] = Exp2((scores[i][n][e] - base) * scale);
          sum += scores[i][n][e];
        }
      }
      state.sum[i][half] = __fmaf_rn(state.sum[i][half], old[half], sum);
    }
    // Mostly no row finds a larger score, and a factor of 1 changes nothing.
    if (__any_sync(kAllLanes, old[0] != 1.0f || old[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < Kind::kHeadDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) output[i][n][e] *= old[e / 2];
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      weights[i][j][0] = PackPair<T>(scores[i][2 * j][0], scores[i][2 * j][1]);
      weights[i][j][1] = PackPair<T>(scores[i][2 * j][2], scores[i][2 * j][3]);
      weights[i][j][2] = PackPair<T>(scores[i][2 * j + 1][0], scores[i][2 * j + 1][1]);
      weights[i][j][3] = PackPair<T>(scores[i][2 * j + 1][2], scores[i][2 * j + 1][3]);
    }
  }
}

// output += weights x values. values: shared address of 32 values.
template <typename Kind, int kTiles>
__device__ inline void AddValues(uint32_t values, const uint32_t (&weights)[kTiles][2][4],
                                 RowOutput<Kind> (&output)[kTiles]) {
  using T = typename Kind::Compute;
  const int lane = threadIdx.x % 32;
  const uint32_t value =
      values + (Kind::kFp8 ? PieceOffset<Kind::kRowPieces>(lane, 0)
                           : PieceOffset<Kind::kRowPieces>(lane % 16, lane / 16));
  if constexpr (Kind::kFp8) {
#pragma unroll
    for (int c = 0; c < Kind::kHeadDim / 16; ++c) {
      // Two fp8 of a key travel as one 16-bit element; transposed, a lane holds elements 2 g and
      // 2 g + 1 of keys 2 t and 2 t + 1. Even elements make one tile of columns, odd ones the next.
      uint32_t b[4], even[4], odd[4];
      LoadMatricesTransposed(b, OtherPiece(value, c));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Fp8ToFp16(__byte_perm(b[j], 0, 0x3120), even[j], odd[j]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          MultiplyAdd<T>(output[i][2 * c], weights[i][j], even[2 * j], even[2 * j + 1]);
          MultiplyAdd<T>(output[i][2 * c + 1], weights[i][j], odd[2 * j], odd[2 * j + 1]);
        }
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int c = 0; c < Kind::kHeadDim / 16; ++c) {
        uint32_t b[4];
        LoadMatricesTransposed(b, OtherPiece(value, 2 * c) + 16 * j * Kind::kRowBytes);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          MultiplyAdd<T>(output[i][2 * c], weights[i][j], b[0], b[1]);
          MultiplyAdd<T>(output[i][2 * c + 1], weights[i][j], b[2], b[3]);
        }
      }
    }
  }
}

}  // namespace tandem::ops::cuda
