// Products with any number of tokens: tiles of weights and activations pass through shared memory,
// several stages ahead of the tensor cores. Used on GPUs without warpgroups if the library is
// missing, does not support the shape, or would not keep a row's bits.
#include "ops/cuda/device/async_copy.cuh"
#include "ops/cuda/linear/linear_kernels.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kRows = 128;  // weight rows of a block
constexpr int kTokens = kTiledTokens;
constexpr int kStages = 4;
constexpr int kThreads = 256;  // 4 x 2 warps of 32 x 32
constexpr int kRowTiles = 2;   // of 16 rows, in a warp
constexpr int kTokenTiles = 4;
constexpr int kOutPitch = kRows + 4;

// The shared memory of a stage: kUnitCols columns of the block's weights and activations, as pieces
// of 16 bytes. The pieces of odd rows are swapped so that the eight lanes of a load, four for each
// of two rows, use all banks.
template <typename W>
struct Stage {
  static constexpr int kWeightPieces =
      kIsInt4<W> ? 2 : kUnitCols * static_cast<int>(sizeof(W)) / kPieceBytes;
  static constexpr int kTokenPieces = kUnitCols * 2 / kPieceBytes;
  uint4 weights[kRows * kWeightPieces];
  uint4 tokens[kTokens * kTokenPieces];

  __device__ static int WeightAt(int row, int piece) {
    // fp8: two rows fill the banks without a swap.
    const int place = sizeof(W) == 1 ? piece : piece ^ (row % 2 * 4);
    return row * kWeightPieces + place;
  }
  __device__ static int TokenAt(int token, int piece) {
    return token * kTokenPieces + (piece ^ (token % 2 * (kIsByte<W> ? 1 : 4)));
  }
};

template <typename W>
constexpr int kSharedBytes = kStages * static_cast<int>(sizeof(Stage<W>));
static_assert(kTokens * kOutPitch * sizeof(float) <= kSharedBytes<Int4<1>>,
              "the sums reuse the stages");

// The weights of a stage.
template <typename W>
__device__ void FillWeights(const LinearArgs& args, Stage<W>& stage, int first_row, int col) {
  if constexpr (kIsInt4<W>) {
    // The block's tiles one after another.
    static_assert(kRows * Stage<W>::kWeightPieces == kThreads);
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t tile = Int4Tile<Epilogue::kPlain>(args, first_row, thread / 32);
    CopyPiece(SharedAddress(&stage.weights[thread]),
              static_cast<const uint4*>(args.weight) +
                  (tile * UnitsOf(args) + col / kUnitCols) * 32 + thread % 32,
              true);
    return;
  }
  constexpr int kWeightCols = kPieceBytes / static_cast<int>(sizeof(W));
  // Not unrolled: the sums need the registers.
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * Stage<W>::kWeightPieces; i += kThreads) {
    const int row = i / Stage<W>::kWeightPieces;
    const int piece = i % Stage<W>::kWeightPieces;
    const int at = col + piece * kWeightCols;
    // Rows past the last are read as the last and never stored.
    const int64_t from = static_cast<int64_t>(min(first_row + row, args.rows - 1)) * args.pitch;
    const bool valid = at < args.pitch;
    CopyPiece(SharedAddress(&stage.weights[Stage<W>::WeightAt(row, piece)]),
              static_cast<const W*>(args.weight) + from + (valid ? at : 0), valid);
  }
}

template <typename W, bool kAligned>
__device__ void FillStage(const LinearArgs& args, Stage<W>& stage, int first_row, int first_token,
                          int col) {
  FillWeights(args, stage, first_row, col);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * Stage<W>::kTokenPieces; i += kThreads) {
    const int token = i / Stage<W>::kTokenPieces;
    const int piece = i % Stage<W>::kTokenPieces;
    const int at = col + piece * 8;
    const bool valid = first_token + token < args.tokens && at < args.cols;
    const auto* const row = static_cast<const uint16_t*>(args.x) +
                            static_cast<int64_t>(valid ? first_token + token : 0) * args.cols;
    uint4* const to = &stage.tokens[Stage<W>::TokenAt(token, piece)];
    if constexpr (kAligned) {
      CopyPiece(SharedAddress(to), row + (valid ? at : 0), valid);
    } else {
      *to = valid ? LoadUnaligned(row, at, args.cols) : make_uint4(0, 0, 0, 0);
    }
  }
}

using Sums = float[kRowTiles][kTokenTiles][4];

// A lane's activations of a step, as words of Factor<T, W>.
template <typename T, typename W>
__device__ void LoadTokens(const Stage<W>& stage, int token, int step, int quad,
                           uint32_t (&x)[kLaneWords<W>]) {
#pragma unroll
  for (int i = 0; i < kLaneWords<W> / 4; ++i) {
    const int piece = (step * kStepCols<W> + PieceCol<W>(quad, i)) / 8;
    const uint4 words = stage.tokens[Stage<W>::TokenAt(token, piece)];
    x[4 * i] = words.x;
    x[4 * i + 1] = words.y;
    x[4 * i + 2] = words.z;
    x[4 * i + 3] = words.w;
  }
  ConvertActivations<T, W>(x);
}

// Adds the columns of the stage, which holds unit `unit`, to the warp's 32 x 32 sums.
template <typename T, typename W>
__device__ void MultiplyStage(const LinearArgs& args, const Stage<W>& stage, int first_row,
                              int unit, int row, int token, int quad, Sums& sums) {
  if constexpr (kIsInt4<W>) {
    const int group = row % 8;
    uint32_t weights[kRowTiles][2][kLaneWords<W>];
    float2 scales[kRowTiles][kUnitScales<W>];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const int in_block = row / 16 + tile;
      const int64_t at =
          static_cast<int64_t>(Int4Tile<Epilogue::kPlain>(args, first_row, in_block)) *
              args.groups +
          (unit >> args.group_shift) * kUnitScales<W>;
#pragma unroll
      for (int i = 0; i < kUnitScales<W>; ++i) {
        scales[tile][i] = __ldg(&args.group_scales[(at + i) * 8 + group]);
      }
      UnpackTile<T, W>(
          stage.weights[in_block * 32 + group * 4 + quad],
          [&](int i) {
            return args.group_zeros == nullptr ? kMiddleZeros<T>
                                               : __ldg(&args.group_zeros[(at + i) * 8 + group]);
          },
          weights[tile][0], weights[tile][1]);
    }
#pragma unroll
    for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
      uint32_t x[kLaneWords<W>];
      LoadTokens<T>(stage, token + 8 * tokens, 0, quad, x);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        MultiplyUnit<T, W>(sums[tile][tokens], weights[tile][0], weights[tile][1], x,
                           [&](int i) { return scales[tile][i]; });
      }
    }
    return;
  }
  constexpr int kSteps = kUnitCols / kStepCols<W>;
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    uint32_t weights[kRowTiles][2][kLaneWords<W>];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = Stage<W>::WeightAt(row + 16 * tile + 8 * half, step * 4 + quad);
        UnpackWeights<W>(stage.weights[at], weights[tile][half]);
      }
    }
#pragma unroll
    for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
      uint32_t x[kLaneWords<W>];
      LoadTokens<T>(stage, token + 8 * tokens, step, quad, x);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        MultiplyStep<T, W>(sums[tile][tokens], weights[tile][0], weights[tile][1], x);
      }
    }
  }
}

template <typename T, typename W, bool kAligned>
__device__ __forceinline__ void MultiplyTile(const LinearArgs& args, int first_row, int first_token,
                                             uint4* shared) {
  auto* const stages = reinterpret_cast<Stage<W>*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = static_cast<int>(threadIdx.x) % 32 / 4;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const int row = warp % 4 * 32 + group;  // the lane's first, in the tile
  const int token = warp / 4 * 32 + group;

  const int units = (args.cols + kUnitCols - 1) / kUnitCols;
  const int segment_units = args.segment / kUnitCols;
#pragma unroll
  for (int unit = 0; unit < kStages - 1; ++unit) {
    if (unit < units)
      FillStage<W, kAligned>(args, stages[unit], first_row, first_token, unit * kUnitCols);
    CommitCopies();
  }
  Sums sums = {};
  Sums totals = {};
  Sums first_half = {};
  for (int unit = 0, left = segment_units; unit < units; ++unit) {
    WaitForCopies<kStages - 2>();
    __syncthreads();
    // Refill the stage that all threads left before the barrier.
    const int next = unit + kStages - 1;
    if (next < units) {
      FillStage<W, kAligned>(args, stages[next % kStages], first_row, first_token,
                             next * kUnitCols);
    }
    CommitCopies();
    MultiplyStage<T, W>(args, stages[unit % kStages], first_row, unit, row, token, quad, sums);
    if (--left > 0 && unit + 1 < units) continue;
    left = segment_units;
    const bool half = unit + 1 == kSegments / 2 * segment_units;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          totals[i][j][k] += sums[i][j][k];
          sums[i][j][k] = 0.0f;
          if (half) {
            first_half[i][j][k] = totals[i][j][k];
            totals[i][j][k] = 0.0f;
          }
        }
      }
    }
  }

  // Through shared memory, so that neighbouring threads store neighbouring elements.
  __syncthreads();
  auto* const out = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at_token = warp / 4 * 32 + 8 * j + 2 * quad + k % 2;
        out[at_token * kOutPitch + row + 16 * i + 8 * (k / 2)] =
            first_half[i][j][k] + totals[i][j][k];
      }
    }
  }
  __syncthreads();
  const int num_tokens = min(kTokens, args.tokens - first_token);
  for (int i = static_cast<int>(threadIdx.x); i < num_tokens * kRows; i += kThreads) {
    const int out_row = first_row + i % kRows;
    if (out_row >= args.rows) continue;
    const float sum = out[i / kRows * kOutPitch + i % kRows];
    Store<T>(args, first_token + i / kRows, out_row, RowResult<T, W>(args, out_row).Of(sum));
  }
}

template <typename T, typename W, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2) TiledKernel(const LinearArgs args) {
  extern __shared__ uint4 shared[];
  MultiplyTile<T, W, kAligned>(args, static_cast<int>(blockIdx.x) * kRows,
                               static_cast<int>(blockIdx.y) * kTokens, shared);
}

template <typename T, typename W, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2)
    TiledExpertsKernel(const __grid_constant__ ExpertProduct product) {
  extern __shared__ uint4 shared[];
  __shared__ LinearArgs args;
  const auto item = static_cast<int>(blockIdx.y);
  if (item >= *product.num_items) return;
  if (threadIdx.x == 0) MakeItemArgs<T, W>(product, item, args);
  __syncthreads();
  MultiplyTile<T, W, kAligned>(args, static_cast<int>(blockIdx.x) * kRows, 0, shared);
}

template <typename T, typename W, bool kAligned>
void Prepare() {
  for (const void* kernel : {reinterpret_cast<const void*>(TiledKernel<T, W, kAligned>),
                             reinterpret_cast<const void*>(TiledExpertsKernel<T, W, kAligned>)}) {
    CheckCuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<W>),
        "shared memory of a product");
  }
}

template <typename T, typename W>
void PrepareBoth() {
  Prepare<T, W, false>();
  Prepare<T, W, true>();
}

}  // namespace

void PrepareTiled() {
  PrepareBoth<Bf16, Bf16>();
  PrepareBoth<Bf16, Fp8>();
  PrepareBoth<Bf16, Int8>();
  PrepareBoth<Bf16, Int4<1>>();
  PrepareBoth<Bf16, Int4<2>>();
  PrepareBoth<Fp16, Fp16>();
  PrepareBoth<Fp16, Fp8>();
  PrepareBoth<Fp16, Int8>();
  PrepareBoth<Fp16, Int4<1>>();
  PrepareBoth<Fp16, Int4<2>>();
}

template <typename T, typename W>
void LaunchTiled(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(!HasFactors(args), "tiles take and leave activations as they are");
  const dim3 blocks(static_cast<unsigned>(CeilDiv(args.rows, kRows)),
                    static_cast<unsigned>(CeilDiv(args.tokens, kTokens)));
  const bool aligned = HasWholePieces(args);
  if (aligned) {
    TiledKernel<T, W, true><<<blocks, kThreads, kSharedBytes<W>, context.stream>>>(args);
  } else {
    TiledKernel<T, W, false><<<blocks, kThreads, kSharedBytes<W>, context.stream>>>(args);
  }
  CheckLaunch("a product in tiles");
}

template <typename T, typename W>
void LaunchTiledExperts(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kTiledTokens, "an item is one tile");
  TANDEM_CHECK(!HasFactors(product.args), "tiles take and leave activations as they are");
  const dim3 blocks(static_cast<unsigned>(CeilDiv(product.args.rows, kRows)),
                    static_cast<unsigned>(product.most_items));
  if (HasWholePieces(product.args)) {
    TiledExpertsKernel<T, W, true><<<blocks, kThreads, kSharedBytes<W>, context.stream>>>(product);
  } else {
    TiledExpertsKernel<T, W, false><<<blocks, kThreads, kSharedBytes<W>, context.stream>>>(product);
  }
  CheckLaunch("products of experts in tiles");
}

#define TANDEM_TILED(T, W)                                            \
  template void LaunchTiled<T, W>(const Context&, const LinearArgs&); \
  template void LaunchTiledExperts<T, W>(const Context&, const ExpertProduct&)
TANDEM_TILED(Bf16, Bf16);
TANDEM_TILED(Bf16, Fp8);
TANDEM_TILED(Bf16, Int8);
TANDEM_TILED(Bf16, Int4<1>);
TANDEM_TILED(Bf16, Int4<2>);
TANDEM_TILED(Fp16, Fp16);
TANDEM_TILED(Fp16, Fp8);
TANDEM_TILED(Fp16, Int8);
TANDEM_TILED(Fp16, Int4<1>);
TANDEM_TILED(Fp16, Int4<2>);
#undef TANDEM_TILED

}  // namespace tandem::ops::cuda
