// Products with few tokens and weights of 8 or 4 bits. Their time is the time to read the weights:
// a block takes 16 to 64 rows, each of its warps one segment of their columns, and several steps of
// weights are on the way to shared memory at any time. Every lane copies exactly the pieces that it
// multiplies itself, so that no barrier is needed. The activations come through the L1 cache. How
// weights lie in memory and are widened is the policy LaneWeights.
//
// Several blocks fit on an SM (streaming_rows.h). Where a product has fewer, blocks of the next one
// start beside them, and their first weights are there when the activations are.

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/cuda/linear_kernels.cuh"
#include "ops/cuda/streaming_rows.h"
#include "ops/cuda/swiglu.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 32 * kSegments;

// What a policy for W does: how a lane's weights come to shared memory, from the next step to copy
// on, and are multiplied. kWhole: no step passes the last column.
template <typename W, int kRowTiles, bool kWhole, bool kGated>
class LaneWeights;

// Bytes, row by row: two rows of each tile.
template <typename W, int kRowTiles, bool kWhole, bool kGated>
  requires kIsByte<W>
class LaneWeights<W, kRowTiles, kWhole, kGated> {
 public:
  struct Step {
    uint4 pieces[2 * kRowTiles][32];
  };

  __device__ LaneWeights(const LinearArgs& args, int first_row, int lane, int begin)
      : left_(args.cols - begin - lane % 4 * kLaneCols<W>) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = TileRow<kGated>(args, first_row, tile, half, lane / 4);
        next_[tile][half] = static_cast<const W*>(args.weight) +
                            static_cast<int64_t>(row) * args.pitch + begin +
                            lane % 4 * kLaneCols<W>;
      }
    }
  }
  // Zeros after the last column.
  __device__ void CopyNext(Step& step, int lane) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        CopyPiece(SharedAddress(&step.pieces[2 * tile + half][lane]), next_[tile][half],
                  kWhole || left_ > 0);
        next_[tile][half] += kStepCols<W>;
      }
    }
    if constexpr (!kWhole) left_ -= kStepCols<W>;
  }
  // Call between copies into a step and its use by the warp, and in reverse: a lane reads only what
  // it copied.
  __device__ static void Meet() {}

  template <typename T, int kTokenTiles>
  __device__ static void Multiply(const LinearArgs& /*args*/, const Step& step, int lane,
                                  const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                                  float (&sums)[kRowTiles][kTokenTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackWeights<W>(step.pieces[2 * tile][lane], low);
      UnpackWeights<W>(step.pieces[2 * tile + 1][lane], high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyStep<T, W>(sums[tile][tokens], low, high, x[tokens]);
      }
    }
  }

 private:
  int left_;  // columns
  const W* next_[kRowTiles][2];
};

// Tiles of 4 bits, with their scales and zero points: these are few, and each is copied by one lane
// for all.
template <int kScales, int kRowTiles, bool kWhole, bool kGated>
class LaneWeights<Int4<kScales>, kRowTiles, kWhole, kGated> {
  using W = Int4<kScales>;
  static constexpr int kScalePieces = 4 * kScales;  // of a tile
  static constexpr int kZeroPieces = 2 * kScales;
  static constexpr int kFactorPieces = kScalePieces + kZeroPieces;
  static_assert(kRowTiles * kFactorPieces <= 32, "a lane copies one");
  static_assert(!kGated || kRowTiles % 2 == 0, "tiles of gate and up rows take turns");

 public:
  struct Step {
    uint4 pieces[kRowTiles][32];
    uint4 factors[kRowTiles][kFactorPieces];
  };

  __device__ LaneWeights(const LinearArgs& args, int first_row, int lane, int begin)
      : unit_(begin / kUnitCols), group_shift_(args.group_shift) {
    const auto tile_of = [&](int tile) {
      return static_cast<int64_t>(Int4Tile<kGated>(args, first_row, tile));
    };
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      pieces_[tile] =
          static_cast<const uint4*>(args.weight) + tile_of(tile) * UnitsOf(args) * 32 + lane;
    }
    const int64_t group = tile_of(min(lane / kFactorPieces, kRowTiles - 1)) * args.groups;
    const int factor = lane % kFactorPieces;
    const bool is_zero = factor >= kScalePieces;
    factors_ = reinterpret_cast<const uint4*>(args.group_scales) + group * 4 + factor;
    if (is_zero) {
      factors_ =
          reinterpret_cast<const uint4*>(args.group_zeros) + group * 2 + (factor - kScalePieces);
    }
    factor_stride_ = is_zero ? kZeroPieces : kScalePieces;
    copies_factor_ = lane < kRowTiles * kFactorPieces && (!is_zero || args.group_zeros != nullptr);
    // Or the compiler would compute each of them again for every step.
#pragma unroll
    for (auto& pieces : pieces_) asm volatile("" : "+l"(pieces));
    asm volatile("" : "+l"(factors_), "+r"(copies_factor_));
  }
  __device__ void CopyNext(Step& step, int lane) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      CopyPiece(SharedAddress(&step.pieces[tile][lane]), pieces_[tile] + unit_ * 32, true);
    }
    // The units of a group find its factors in the L1 cache.
    CopyCachedPiece(SharedAddress(&step.factors[0][0] + lane),
                    factors_ + (unit_ >> group_shift_) * factor_stride_, copies_factor_ != 0);
    ++unit_;
  }
  __device__ static void Meet() { __syncwarp(); }

  template <typename T, int kTokenTiles>
  __device__ static void Multiply(const LinearArgs& args, const Step& step, int lane,
                                  const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                                  float (&sums)[kRowTiles][kTokenTiles][4]) {
    const int group = lane / 4;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const uint4* const factors = step.factors[tile];
      const auto* const zeros = reinterpret_cast<const uint32_t*>(factors + kScalePieces) + group;
      float2 scales[kScales];
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        scales[i] = reinterpret_cast<const float2*>(factors)[8 * i + group];
      }
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackTile<T, W>(
          step.pieces[tile][lane],
          [&](int i) { return args.group_zeros == nullptr ? kMiddleZeros<T> : zeros[8 * i]; }, low,
          high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyUnit<T, W>(sums[tile][tokens], low, high, x[tokens],
                           [&](int i) { return scales[i]; });
      }
    }
  }

 private:
  int unit_;  // the next
  const int group_shift_;
  const uint4* pieces_[kRowTiles];
  const uint4* factors_;
  int factor_stride_;  // from one group to the next; of 32 columns: two groups
  int copies_factor_;  // whether this lane copies one
};

// A warp's part of a block's shared memory: first its ring of steps, then its sums. The pitch keeps
// the lanes' stores of sums in different banks.
template <typename Step_, int kRowTiles, int kTokenTiles>
struct WarpMemory {
  using Step = Step_;
  static constexpr int kSteps =
      StreamingBlockBytes(16 * kRowTiles) / kSegments / static_cast<int>(sizeof(Step));
  union {
    Step steps[kSteps];
    float sums[8 * kTokenTiles][16 * kRowTiles + 4];
  };
};

// A lane's activations: one row of each tile of tokens, from the next of `num_steps` steps to load
// on. Tokens past the last are read as the last and never stored. Plain loads: the previous kernel
// may still have been writing when this one began.
template <typename W, int kTokenTiles, bool kWhole>
class LaneActivations {
 public:
  struct Step {
    uint32_t words[kTokenTiles][kLaneWords<W>];
  };

  __device__ LaneActivations(const LinearArgs& args, int lane, int begin, int num_steps)
      : cols_(args.cols),
        col_(begin + PieceCol<W>(lane % 4, 0)),
        last_col_(col_ + (num_steps - 1) * kStepCols<W>) {
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      rows_[tile] = static_cast<const uint16_t*>(args.x) +
                    static_cast<int64_t>(min(8 * tile + lane / 4, args.tokens - 1)) * args.cols;
    }
  }
  // Zeros after the last column; after the last step that one again.
  __device__ void LoadNext(Step& step) {
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kLaneWords<W>; i += 4) {
        const int col = col_ + PieceCol<W>(0, i / 4);
        const uint4 piece = kWhole ? *reinterpret_cast<const uint4*>(rows_[tile] + col)
                                   : LoadUnaligned(rows_[tile], col, cols_);
        step.words[tile][i] = piece.x;
        step.words[tile][i + 1] = piece.y;
        step.words[tile][i + 2] = piece.z;
        step.words[tile][i + 3] = piece.w;
      }
    }
    col_ = min(col_ + kStepCols<W>, last_col_);
  }

 private:
  int cols_;
  int col_;
  int last_col_;
  const uint16_t* rows_[kTokenTiles];
};

// kRowTiles * 16 weight rows per block, kTokenTiles * 8 tokens. kWhole: HasWholeUnits(args).
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated>
__global__ void __launch_bounds__(kThreads, kWhole ? StreamingBlocksPerSm(16 * kRowTiles) : 2)
    StreamingKernel(const LinearArgs args) {
  constexpr int kOutputs = (kGated ? 8 : 16) * kRowTiles;
  using Weights = LaneWeights<W, kRowTiles, kWhole, kGated>;
  using Memory = WarpMemory<typename Weights::Step, kRowTiles, kTokenTiles>;
  extern __shared__ uint4 shared[];
  auto* const memory = reinterpret_cast<Memory*>(shared);  // of each warp

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  const int first_row = static_cast<int>(blockIdx.x) * kOutputs;
  const int begin = warp * args.segment;
  const int end = min(begin + args.segment, args.cols);
  const int num_steps = (max(end - begin, 0) + kStepCols<W> - 1) / kStepCols<W>;

  Weights weights(args, first_row, lane, begin);
#pragma unroll
  for (int step = 0; step < Memory::kSteps; ++step) {
    if (step < num_steps) weights.CopyNext(memory[warp].steps[step], lane);
    CommitCopies();
  }
  // A thread stores results of one row (and of its up row).
  const int out_row = first_row + thread % kOutputs;
  const int read_row = min(out_row, args.rows - 1);
  const RowResult<T, W> result(args, read_row);
  const RowResult<T, W> up_result(args, kGated ? read_row + args.rows : read_row);
  // Everything else waits for the previous kernel.
  BeginKernel();

  LaneActivations<W, kTokenTiles, kWhole> activations(args, lane, begin, num_steps);
  // Two steps, because one is multiplied faster than L2 answers; one where registers are short.
  constexpr int kAhead = kTokenTiles == 1 || kRowTiles == 2 ? 2 : 1;
  // Activations that are not converted stay where they were loaded until they have been multiplied.
  constexpr bool kLoadsLate = kIsInt4<W>;
  typename LaneActivations<W, kTokenTiles, kWhole>::Step ahead[kAhead];
  if (num_steps > 0) {
#pragma unroll
    for (auto& step : ahead) activations.LoadNext(step);
  }
  float sums[kRowTiles][kTokenTiles][4] = {};
  int place = 0;  // of the step in the ring
#pragma unroll 1
  for (int first = 0; first < num_steps; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= num_steps) break;
      auto x = ahead[i];
#pragma unroll
      for (auto& words : x.words) ConvertActivations<T, W>(words);
      if constexpr (!kLoadsLate) activations.LoadNext(ahead[i]);
      WaitForCopies<Memory::kSteps - 1>();
      auto& step = memory[warp].steps[place];
      Weights::Meet();
      Weights::template Multiply<T>(args, step, lane, x.words, sums);
      if constexpr (kLoadsLate) activations.LoadNext(ahead[i]);
      Weights::Meet();
      if (first + i + Memory::kSteps < num_steps) weights.CopyNext(step, lane);
      CommitCopies();
      if (++place == Memory::kSteps) place = 0;
    }
  }

  __syncwarp();
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        memory[warp].sums[8 * tokens + 2 * quad + i % 2][16 * tile + 8 * (i / 2) + group] =
            sums[tile][tokens][i];
      }
    }
  }
  __syncthreads();
  if (out_row >= args.rows) return;
  for (int token = thread / kOutputs; token < args.tokens; token += kThreads / kOutputs) {
    const int at = thread % kOutputs;
    const auto sum_at = [&](int place) {
      return AddSegments([&](int segment) { return memory[segment].sums[token][place]; });
    };
    if constexpr (kGated) {
      constexpr int kSpan = kIsInt4<W> ? 16 : 8;
      const int place = GatePlace<kSpan>(at);
      const float gate = Rounded<T>(result.Of(sum_at(place)));
      const float up = Rounded<T>(up_result.Of(sum_at(place + kSpan)));
      Store<T>(args, token, out_row, SwiGluOf(gate, up));
    } else {
      Store<T>(args, token, out_row, result.Of(sum_at(at)));
    }
  }
}

template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated>
void Launch(const Context& context, const LinearArgs& args) {
  const auto kernel = StreamingKernel<T, W, kRowTiles, kTokenTiles, kWhole, kGated>;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(args.rows, (kGated ? 8 : 16) * kRowTiles)));
  using Step = typename LaneWeights<W, kRowTiles, kWhole, kGated>::Step;
  constexpr int kBytes =
      kSegments * static_cast<int>(sizeof(WarpMemory<Step, kRowTiles, kTokenTiles>));
  TakeSharedMemory(kernel, kBytes, "the shared memory of a product");
  LaunchEarly(context, "a product with few tokens", kernel, blocks, kThreads, kBytes, args);
}

template <typename T, typename W, bool kGated>
void LaunchWhole(const Context& context, const LinearArgs& args) {
  // Blocks of one size suffice for groups of 32, which are rare.
  const int rows = kUnitScales<W> == 2
                       ? 32
                       : StreamingRows({.rows = int64_t{args.rows} * (kGated ? 2 : 1),
                                        .tokens = args.tokens,
                                        .num_sms = context.num_sms});
  const auto launch = [&]<int kRowTiles>() {
    args.tokens <= 8 ? Launch<T, W, kRowTiles, 1, true, kGated>(context, args)
                     : Launch<T, W, kRowTiles, 2, true, kGated>(context, args);
  };
  if constexpr (kUnitScales<W> < 2) {
    if (rows == 64) return launch.template operator()<4>();
    if constexpr (!(kGated && kIsInt4<W>)) {
      if (rows == 16) return launch.template operator()<1>();
    }
  }
  launch.template operator()<2>();
}

}  // namespace

template <typename T, typename W>
void LaunchStreamingQuantized(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  HasWholeUnits(args) ? LaunchWhole<T, W, false>(context, args)
                      : Launch<T, W, 1, 2, false, false>(context, args);
}

template <typename T, typename W>
void LaunchStreamingQuantizedGated(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   (!kIsInt4<W> || args.rows % 16 == 0),
               "the streaming kernel does not take this");
  LaunchWhole<T, W, true>(context, args);
}

#define TANDEM_STREAMING(T, W)                                                     \
  template void LaunchStreamingQuantized<T, W>(const Context&, const LinearArgs&); \
  template void LaunchStreamingQuantizedGated<T, W>(const Context&, const LinearArgs&)
TANDEM_STREAMING(Bf16, Fp8);
TANDEM_STREAMING(Fp16, Fp8);
TANDEM_STREAMING(Bf16, Int8);
TANDEM_STREAMING(Fp16, Int8);
TANDEM_STREAMING(Bf16, Int4<1>);
TANDEM_STREAMING(Fp16, Int4<1>);
TANDEM_STREAMING(Bf16, Int4<2>);
TANDEM_STREAMING(Fp16, Int4<2>);
#undef TANDEM_STREAMING

}  // namespace tandem::ops::cuda
