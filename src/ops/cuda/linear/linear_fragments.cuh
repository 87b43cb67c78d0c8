// Shared by the matrix kernels: how a lane of a warp holds weights and activations for
// mma.m16n8k16, and how a sum is finished. The weights' rows are the M side and the tokens the N
// side, so that a single token costs one tile of eight.
//
// A lane is (group, quad) = (lane / 4, lane % 4). A step is 64 bytes of each of 16 weight rows: a
// lane takes 16 bytes of the rows `group` and `group + 8`, and the matching elements of activation
// row `group`, and feeds both to two (fp8: four) products without reordering: it does not matter
// which of the 16 columns of a product an element fills, as long as both sides agree.
//
// With fp8 weights both sides are multiplied as fp16, also when the activations are bf16: the GPU
// has an instruction that widens fp8 to fp16 and none that widens it to bf16. fp16 has the longer
// mantissa but the smaller range, so bf16 activations are first multiplied by 2^-4; the result of
// a row undoes it. From 2^-13 (1.2e-4) to 2^20 (a million) the conversion is exact. Larger values
// are clamped: 2^-4 leaves the inputs of `down`, the largest, 16 times the range of models that run
// in fp16. Smaller ones change by at most 2^-21, which is what rounding 2^-13 to bf16 costs. The
// conversion is half of a product's instructions at 16 tokens, so a product of few tokens stores
// what such a product takes next converted, once instead of in every block (out_is_factors).
//
// Integers of 8 bits are widened to fp16 like fp8, exactly. Those of 4 bits are widened to the type
// of the activations: a piece of 16 bytes holds 16 columns of both rows of a lane, packed so that
// two elements come out of a word with a shift and a mask (Int4). Their differences from the zero
// point are multiplied, and the sum of each group, or of each unit of a longer one, is multiplied
// by the group's scale in fp32 before it is added.
//
// Every kernel sums a row in the same order: kSegments pieces of the columns, each summed step by
// step from zero; then the pieces of each half one after another, then the halves. So a result has
// the same bits in every kernel and for every number of tokens, and several blocks can share a row.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/cuda/device/context.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/device/mma.cuh"
#include "ops/ops.h"

namespace tandem::ops::cuda {

// Weights of 8 bits, as stored.
struct Int8 {
  int8_t value;
};
// Weights of 4 bits in tiles: unit u of the 16 rows of tile t is the 512 bytes at (t * units + u) *
// 512, a piece for each lane. Its words are the columns 8 * quad .. + 7 of the unit's two halves of
// 32 columns, first of row `group`, then of row `group + 8`; elements 2 i and 2 i + 1 of a word's
// eight lie at bits 4 i and 16 + 4 i. kScales: how many groups a unit has of each row, 2 where
// groups have 32 columns.
template <int kScales>
struct Int4 {};

template <typename W>
constexpr int kUnitScales = 0;
template <int kScales>
constexpr int kUnitScales<Int4<kScales>> = kScales;
template <typename W>
constexpr bool kIsInt4 = kUnitScales<W> > 0;
template <typename W>
constexpr bool kIsByte = sizeof(W) == 1 && !kIsInt4<W>;

// The type in which activations T and weights W (T, Fp8, Int8 or Int4) are multiplied, and the
// power of two by which activations are multiplied first.
template <typename T, typename W>
using Factor = std::conditional_t<kIsByte<W>, Fp16, T>;
template <typename T, typename W>
constexpr float kActivationScale = std::is_same_v<T, Factor<T, W>> ? 1.0f : 0x1p-4f;

// One product with plain pointers: out [tokens, rows] = x [tokens, cols] * weight^T + bias.
struct LinearArgs {
  const void* x = nullptr;
  const void* weight = nullptr;   // [rows, pitch], zeros after `cols`; or the tiles of Int4
  const float* scales = nullptr;  // [rows], or null
  // Of Int4: the scales of rows `group` and `group + 8`, [tiles, groups, 8], and their zero points
  // in the lower and the upper half of a word, likewise; no zero points: all are kInt4Middle.
  const float2* group_scales = nullptr;
  const uint32_t* group_zeros = nullptr;
  const float* bias = nullptr;  // [rows], or null
  void* out = nullptr;
  int tokens = 0;
  int rows = 0;
  int cols = 0;
  int pitch = 0;        // a multiple of 16 bytes
  int segment = 0;      // columns summed in one go: SegmentCols(cols)
  int groups = 0;       // of a row; a whole number of units' groups
  int group_shift = 0;  // the group of unit u is u >> group_shift; or 2 u and 2 u + 1
  int half_head = 0;    // of Epilogue::kTurned: rows of half a head
  bool float_out = false;
  // x holds Factor<T, W>, kActivationScale<T, W> times the activations, instead of T, from which it
  // differs; and out what a product with weights of 8 bits takes so, whatever W is here. Only the
  // kernels for few tokens know this.
  bool x_is_factors = false;
  bool out_is_factors = false;
  // x is as LinearAdd leaves it: NormedRows::squares, [tokens], and the norm's epsilon; null: x is
  // as it is.
  const int64_t* squares = nullptr;
  float epsilon = 0.0f;
  // Of an item of a plan (ExpertProduct): the rows of x that its tokens are; null: the tokens
  // themselves.
  const int32_t* sources = nullptr;
};

// Largest number of tokens of the kernels that stream the weights once.
constexpr int kMaxStreamingTokens = 16;

constexpr int kSegments = 8;
constexpr int kStepBytes = 64;
// A number of columns that is a whole number of steps for both weight types.
constexpr int kUnitCols = 64;

constexpr int SegmentCols(int64_t cols) {
  return static_cast<int>(CeilDiv(CeilDiv(cols, kUnitCols), kSegments)) * kUnitCols;
}

// Of Int4 a step is 32 bytes a row, in pieces for two rows.
template <typename W>
constexpr int kStepCols = kStepBytes / static_cast<int>(sizeof(W));
// Columns of a lane in a step, and the words that hold them as pairs of 16 bits.
template <typename W>
constexpr int kLaneCols = kStepCols<W> / 4;
template <typename W>
constexpr int kLaneWords = kLaneCols<W> / 2;
// The first column of the i-th of a lane's pieces of eight activations in a step.
template <typename W>
__device__ constexpr int PieceCol(int quad, int i) {
  return kIsInt4<W> ? 32 * i + 8 * quad : kLaneCols<W> * quad + 8 * i;
}

// Weights are read once: they should not evict data that is read again.
__device__ inline uint4 LoadOnce(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// Four fp8 numbers as the pairs (0, 1) and (2, 3) of fp16. Exact; weights hold no NaN.
__device__ inline void Widen(uint32_t four, uint32_t& first, uint32_t& second) {
#if __CUDA_ARCH__ >= 890
  asm("{\n\t"
      ".reg .b16 low, high;\n\t"
      "mov.b32 {low, high}, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n\t"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n\t"
      "}"
      : "=r"(first), "=r"(second)
      : "r"(four));
#else
  // One byte moves to the top of each half, then exponent and mantissa to their places in fp16: the
  // value is then too small by 2^8, also for subnormals.
  constexpr uint32_t kTwoTo8 = 0x5c005c00u;
  const uint32_t low = __byte_perm(four, 0, 0x1404);
  const uint32_t high = __byte_perm(four, 0, 0x3424);
  const uint32_t low_bits = (low & 0x80008000u) | ((low >> 1) & 0x3f803f80u);
  const uint32_t high_bits = (high & 0x80008000u) | ((high >> 1) & 0x3f803f80u);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(first) : "r"(low_bits), "r"(kTwoTo8));
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(second) : "r"(high_bits), "r"(kTwoTo8));
#endif
}

// The same for four signed integers: 1024 + 128 + value is made of bits and loses the sum again.
__device__ inline void WidenIntegers(uint32_t four, uint32_t& first, uint32_t& second) {
  constexpr uint32_t k1024 = 0x64006400u;
  const __half2 offset = __half2half2(__ushort_as_half(0x6480));
  const uint32_t raised = four ^ 0x80808080u;
  const uint32_t low = __byte_perm(raised, k1024, 0x5150);
  const uint32_t high = __byte_perm(raised, k1024, 0x5352);
  const __half2 difference = __hsub2(reinterpret_cast<const __half2&>(low), offset);
  const __half2 other = __hsub2(reinterpret_cast<const __half2&>(high), offset);
  first = reinterpret_cast<const uint32_t&>(difference);
  second = reinterpret_cast<const uint32_t&>(other);
}

// The number in T whose lowest bits count ones: an element of 4 bits in them is added to it. A zero
// point is kept as its sum with this number.
template <typename T>
constexpr uint32_t kInt4Base = std::is_same_v<T, Bf16> ? 0x4300 : 0x6400;
constexpr uint32_t kInt4Middle = 8;

// Eight elements of 4 bits less a zero point, both halves of `zero`, as words of T. Exact.
template <typename T>
__device__ inline void UnpackEight(uint32_t eight, uint32_t zero, uint32_t* words) {
  using Pair = std::conditional_t<std::is_same_v<T, Bf16>, __nv_bfloat162, __half2>;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t raised;  // the bits of an element in each half, or those of the base
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(raised)
        : "r"(eight >> (4 * i)), "n"(0x000f000fu), "n"(kInt4Base<T> * 0x00010001u));
    const Pair difference =
        __hsub2(reinterpret_cast<const Pair&>(raised), reinterpret_cast<const Pair&>(zero));
    words[i] = reinterpret_cast<const uint32_t&>(difference);
  }
}

// A lane's piece of a unit of Int4 as words of T of its two rows. zero_of(i): the zero points of
// the i-th of the unit's groups, one row's in each half.
template <typename T, typename W, typename ZeroOf>
__device__ inline void UnpackTile(const uint4& piece, const ZeroOf& zero_of,
                                  uint32_t (&low)[kLaneWords<W>], uint32_t (&high)[kLaneWords<W>]) {
  const uint32_t first = zero_of(0);
  const uint32_t last = zero_of(kUnitScales<W> - 1);
  UnpackEight<T>(piece.x, __byte_perm(first, 0, 0x1010), low);
  UnpackEight<T>(piece.y, __byte_perm(last, 0, 0x1010), low + 4);
  UnpackEight<T>(piece.z, __byte_perm(first, 0, 0x3232), high);
  UnpackEight<T>(piece.w, __byte_perm(last, 0, 0x3232), high + 4);
}

// Where all zero points are kInt4Middle.
template <typename T>
constexpr uint32_t kMiddleZeros = (kInt4Base<T> + kInt4Middle) * 0x00010001u;

// A lane's 16 bytes of a weight row as words of Factor<T, W>.
template <typename W>
__device__ inline void UnpackWeights(const uint4& bytes, uint32_t (&words)[kLaneWords<W>]) {
  if constexpr (sizeof(W) == 2) {
    words[0] = bytes.x;
    words[1] = bytes.y;
    words[2] = bytes.z;
    words[3] = bytes.w;
  } else if constexpr (std::is_same_v<W, Int8>) {
    WidenIntegers(bytes.x, words[0], words[1]);
    WidenIntegers(bytes.y, words[2], words[3]);
    WidenIntegers(bytes.z, words[4], words[5]);
    WidenIntegers(bytes.w, words[6], words[7]);
  } else {
    Widen(bytes.x, words[0], words[1]);
    Widen(bytes.y, words[2], words[3]);
    Widen(bytes.z, words[4], words[5]);
    Widen(bytes.w, words[6], words[7]);
  }
}

// `rounded`, an activation in T's precision, as the factor that products with 8-bit weights
// multiply. As ConvertActivations makes it.
template <typename T>
__device__ inline Fp16 FactorOf(float rounded) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;"
      : "=r"(pair)
      : "f"(0.0f), "f"(rounded * kActivationScale<T, Fp8>));
  return __ushort_as_half(static_cast<uint16_t>(pair));
}

// A lane's activations as words of Factor<T, W>, kActivationScale<T, W> times their values. NaN
// stays NaN.
template <typename T, typename W, int kWords>
__device__ inline void ConvertActivations(uint32_t (&words)[kWords]) {
  if constexpr (!std::is_same_v<T, Factor<T, W>>) {
    const __nv_bfloat162 scale = __float2bfloat162_rn(kActivationScale<T, W>);
#pragma unroll
    for (uint32_t& word : words) {
      const __nv_bfloat162 scaled = __hmul2(reinterpret_cast<const __nv_bfloat162&>(word), scale);
      const auto bits = reinterpret_cast<const uint32_t&>(scaled);
      asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;"
          : "=r"(word)
          : "f"(__uint_as_float(bits & 0xffff0000u)), "f"(__uint_as_float(bits << 16)));
    }
  }
}

// Adds sums of a lane's two rows times their scales, in the order of the matrix instructions'
// results.
template <int kSums>
__device__ inline void AddScaled(float (&sums)[kSums], const float (&parts)[kSums],
                                 const float2& scales) {
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    sums[i] = fmaf(parts[i], i % 4 < 2 ? scales.x : scales.y, sums[i]);
}

// One step of 16 weight rows (the lane's two) times eight tokens.
template <typename T, typename W>
__device__ inline void MultiplyStep(float (&sum)[4], const uint32_t (&low)[kLaneWords<W>],
                                    const uint32_t (&high)[kLaneWords<W>],
                                    const uint32_t (&x)[kLaneWords<W>]) {
#pragma unroll
  for (int i = 0; i < kLaneWords<W>; i += 2) {
    MultiplyAdd<Factor<T, W>>(sum, low[i], high[i], low[i + 1], high[i + 1], x[i], x[i + 1]);
  }
}

// The same for Int4. scale_of(i): of the i-th of the unit's groups, the lane's two rows.
template <typename T, typename W, typename ScaleOf>
__device__ inline void MultiplyUnit(float (&sum)[4], const uint32_t (&low)[kLaneWords<W>],
                                    const uint32_t (&high)[kLaneWords<W>],
                                    const uint32_t (&x)[kLaneWords<W>], const ScaleOf& scale_of) {
  constexpr int kWords = kLaneWords<W> / kUnitScales<W>;  // of a group
#pragma unroll
  for (int at = 0; at < kUnitScales<W>; ++at) {
    float part[4] = {};
#pragma unroll
    for (int i = at * kWords; i < (at + 1) * kWords; i += 2) {
      MultiplyAdd<T>(part, low[i], high[i], low[i + 1], high[i + 1], x[i], x[i + 1]);
    }
    AddScaled(sum, part, scale_of(at));
  }
}

// What only the kernels for few tokens know.
inline bool HasFactors(const LinearArgs& args) { return args.x_is_factors || args.out_is_factors; }

// Whether every token's row begins at a multiple of 16 bytes; else LoadUnaligned.
__host__ __device__ inline bool HasWholePieces(const LinearArgs& args) {
  return args.cols % 8 == 0 && reinterpret_cast<uintptr_t>(args.x) % 16 == 0;
}

// As HasWholePieces; and all columns are in whole units.
inline bool HasWholeUnits(const LinearArgs& args) {
  return args.cols % kUnitCols == 0 && HasWholePieces(args);
}

// A token's row of x. kPlanned: of an item.
template <bool kPlanned>
__device__ inline const uint16_t* TokenRow(const LinearArgs& args, int token) {
  const bool named = kPlanned && args.sources != nullptr;
  const int64_t row = named ? args.sources[token] : token;
  return static_cast<const uint16_t*>(args.x) + row * args.cols;
}

// Columns col .. col + 7 of a row of 16-bit elements that need not be aligned; zeros after the end.
__device__ inline uint4 LoadUnaligned(const uint16_t* row, int col, int cols) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = col + 2 * i;
    const uint32_t low = at < cols ? row[at] : 0;
    const uint32_t high = at + 1 < cols ? row[at + 1] : 0;
    words[i] = low | high << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// What becomes of the sums of weight rows. kGated and kTurned take them in pairs, the first of
// which are `rows` outputs.
enum class Epilogue : uint8_t {
  kPlain,   // they are stored as they are
  kAdded,   // they are added to a residual stream
  kGated,   // silu(gate) * up: the weight's first half are gate rows, its second up rows
  kTurned,  // those of queries, keys and values: the halves of a head turn with each other
};
template <Epilogue kEpilogue>
constexpr bool kInPairs = kEpilogue == Epilogue::kGated || kEpilogue == Epilogue::kTurned;

// The weight row of an output, and how many rows further the other of the pair is.
template <Epilogue kEpilogue>
__device__ inline int RowOfOutput(const LinearArgs& args, int output) {
  if constexpr (kEpilogue == Epilogue::kTurned) {
    return output + output / args.half_head * args.half_head;
  } else {
    return output;
  }
}
template <Epilogue kEpilogue>
__device__ inline int RowsToOther(const LinearArgs& args) {
  return kEpilogue == Epilogue::kGated ? args.rows : args.half_head;
}

// The weight row of a lane's half of a tile, in blocks whose outputs begin at `first`. Rows past
// the last are read as the last and never stored. Of pairs the upper half of a tile holds the
// others of those in the lower half.
template <Epilogue kEpilogue>
__device__ inline int TileRow(const LinearArgs& args, int first, int tile, int half, int group) {
  const int output = first + (kInPairs<kEpilogue> ? 8 * tile : 16 * tile + 8 * half) + group;
  const int row = RowOfOutput<kEpilogue>(args, min(output, args.rows - 1));
  return kInPairs<kEpilogue> ? row + half * RowsToOther<kEpilogue>(args) : row;
}

// The inverse for outputs of a block of pairs: the place of output `at` among the block's rows. The
// other's place is kSpan further: 8, or 16 where whole tiles of both take turns.
template <int kSpan>
__device__ inline int PlaceInPairs(int at) {
  return at / kSpan * (2 * kSpan) + at % kSpan;
}

// The tile of Int4 for a block's tile, likewise. Tiles of both of a pair take turns.
template <Epilogue kEpilogue>
__device__ inline int Int4Tile(const LinearArgs& args, int first, int tile) {
  const int wanted = first / 16 + (kInPairs<kEpilogue> ? tile / 2 : tile);
  const int of_outputs = min(wanted, (args.rows + 15) / 16 - 1);
  if constexpr (!kInPairs<kEpilogue>) return of_outputs;
  return (RowOfOutput<kEpilogue>(args, 16 * of_outputs) + tile % 2 * RowsToOther<kEpilogue>(args)) /
         16;
}
__device__ inline int UnitsOf(const LinearArgs& args) {
  return (args.cols + kUnitCols - 1) / kUnitCols;
}

// The sum of a row from those of its segments, in the order that every kernel keeps.
// sum_of(segment): a float.
template <typename SumOf>
__device__ inline float AddSegments(const SumOf& sum_of) {
  constexpr int kHalf = kSegments / 2;
  float first = sum_of(0);
  float second = sum_of(kHalf);
#pragma unroll
  for (int segment = 1; segment < kHalf; ++segment) {
    first += sum_of(segment);
    second += sum_of(kHalf + segment);
  }
  return first + second;
}

// The outputs of the kRowTiles * 16 weight rows of a block.
template <int kRowTiles, Epilogue kEpilogue>
constexpr int kOutputsOf = (kInPairs<kEpilogue> ? 8 : 16) * kRowTiles;

// A warp's sums of tokens and of the rows of a block, in shared memory. The pitch keeps the lanes'
// stores in different banks.
template <int kRowTiles, int kTokenTiles>
using WarpSums = float[8 * kTokenTiles][16 * kRowTiles + 4];

// Stores those that a lane has in registers.
template <int kRowTiles, int kTokenTiles>
__device__ __forceinline__ void KeepSums(int lane, const float (&sums)[kRowTiles][kTokenTiles][4],
                                         WarpSums<kRowTiles, kTokenTiles>& kept) {
  const int group = lane / 4;
  const int quad = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        kept[8 * tokens + 2 * quad + i % 2][16 * tile + 8 * (i / 2) + group] =
            sums[tile][tokens][i];
      }
    }
  }
}

// What the sums of a token are multiplied with: the norm that x is left to take, or 1. squares: of
// the token.
__device__ inline float TokenFactor(const LinearArgs& args, int64_t squares) {
  if (args.squares == nullptr) return 1.0f;
  const auto units = static_cast<float>(static_cast<uint64_t>(squares));
  const float mean = units * kSquaresUnit / static_cast<float>(args.cols);
  return 1.0f / sqrtf(mean + args.epsilon);
}

// What turns a sum of a weight row into a result: the row's scale and bias. Reads only data that no
// kernel writes.
template <typename T, typename W>
class RowResult {
 public:
  __device__ RowResult(const LinearArgs& args, int row) {
    if (args.scales != nullptr) scale_ = args.scales[row];
    if (args.bias != nullptr) bias_ = args.bias[row];
  }
  // Not fused, so that every kernel gives the same bits. Nothing is computed of the scale before
  // there is a sum: its load may still be under way.
  __device__ float Of(float sum) const {
    return __fadd_rn(__fmul_rn(sum * (1.0f / kActivationScale<T, W>), scale_), bias_);
  }

 private:
  float scale_ = 1.0f;
  float bias_ = -0.0f;  // adding it changes nothing, not even the sign of a zero
};

template <typename T>
__device__ inline float Rounded(float value) {
  return static_cast<float>(FromFloat<T>(value));
}

template <typename T>
__device__ inline void Store(const LinearArgs& args, int token, int row, float value) {
  const int64_t at = static_cast<int64_t>(token) * args.rows + row;
  if (args.float_out) {
    static_cast<float*>(args.out)[at] = value;
  } else {
    static_cast<T*>(args.out)[at] = FromFloat<T>(value);
  }
}

}  // namespace tandem::ops::cuda
