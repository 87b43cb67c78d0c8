// Products with few tokens and weights of 8 or 4 bits. Their time is the time to read the weights:
// a block takes 16 to 64 rows, each of its warps one segment of their columns, and several steps of
// weights are on the way to shared memory at any time. Every lane copies exactly the pieces that it
// multiplies itself, so that no barrier is needed. The activations come through the L1 cache. How
// weights lie in memory and are widened is the policy WarpWeights.
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

// What a policy for W does: how a warp's weights come to its part of shared memory, a step after
// another, and are multiplied. Begin starts the copies; then for each step come Wait, Multiply and
// Next. kWhole: no step passes the last column.
template <typename W, int kRowTiles, bool kWhole, bool kGated>
class WarpWeights;

// Bytes, row by row: a lane copies its two rows of each tile itself.
template <typename W, int kRowTiles, bool kWhole, bool kGated>
  requires kIsByte<W>
class WarpWeights<W, kRowTiles, kWhole, kGated> {
  using Step = uint4[2 * kRowTiles][32];
  static constexpr int kSteps =
      StreamingBlockBytes(16 * kRowTiles) / kSegments / static_cast<int>(sizeof(Step));

 public:
  static constexpr int kBlocksPerSm = kWhole ? StreamingBlocksPerSm(16 * kRowTiles) : 2;
  struct Ring {
    Step steps[kSteps];
  };
  __device__ WarpWeights(const LinearArgs& args, Ring& ring, int first_row, int lane, int begin,
                         int num_steps)
      : ring_(ring),
        lane_(lane),
        num_steps_(num_steps),
        left_(args.cols - begin - lane % 4 * kLaneCols<W>) {
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
  __device__ void Begin() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step < num_steps_) CopyNext(ring_.steps[step]);
      CommitCopies();
    }
  }
  __device__ void Wait() const { WaitForCopies<kSteps - 1>(); }
  template <typename T, int kTokenTiles>
  __device__ void Multiply(const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                           float (&sums)[kRowTiles][kTokenTiles][4]) const {
    const Step& step = ring_.steps[place_];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackWeights<W>(step[2 * tile][lane_], low);
      UnpackWeights<W>(step[2 * tile + 1][lane_], high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyStep<T, W>(sums[tile][tokens], low, high, x[tokens]);
      }
    }
  }
  __device__ void Next(int step) {
    if (step + kSteps < num_steps_) CopyNext(ring_.steps[place_]);
    CommitCopies();
    if (++place_ == kSteps) place_ = 0;
  }

 private:
  // Zeros after the last column.
  __device__ void CopyNext(Step& step) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        CopyPiece(SharedAddress(&step[2 * tile + half][lane_]), next_[tile][half],
                  kWhole || left_ > 0);
        next_[tile][half] += kStepCols<W>;
      }
    }
    if constexpr (!kWhole) left_ -= kStepCols<W>;
  }

  Ring& ring_;
  const int lane_;
  const int num_steps_;
  int place_ = 0;  // of the step in the ring
  int left_;       // columns
  const W* next_[kRowTiles][2];
};

// Tiles of 4 bits, with their scales and zero points: these are few, and each is copied by one lane
// for all.
template <int kScales, int kRowTiles, bool kWhole, bool kGated>
class WarpWeights<Int4<kScales>, kRowTiles, kWhole, kGated> {
  using W = Int4<kScales>;
  static constexpr int kScalePieces = 4 * kScales;  // of a tile
  static constexpr int kZeroPieces = 2 * kScales;
  static constexpr int kFactorPieces = kScalePieces + kZeroPieces;
  static_assert(kRowTiles * kFactorPieces <= 32, "a lane copies one");
  static_assert(!kGated || kRowTiles % 2 == 0, "tiles of gate and up rows take turns");

  struct Step {
    uint4 pieces[kRowTiles][32];
    uint4 factors[kRowTiles][kFactorPieces];
  };
  static constexpr int kSteps =
      StreamingBlockBytes(16 * kRowTiles) / kSegments / static_cast<int>(sizeof(Step));

 public:
  static constexpr int kBlocksPerSm = kRowTiles == 1 ? 3 : 2;
  struct Ring {
    Step steps[kSteps];
  };

  __device__ WarpWeights(const LinearArgs& args, Ring& ring, int first_row, int lane, int begin,
                         int num_steps)
      : args_(args), ring_(ring), lane_(lane), num_steps_(num_steps), unit_(begin / kUnitCols) {
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
    factors_ = is_zero ? reinterpret_cast<const uint4*>(args.group_zeros) + group * 2 +
                             (factor - kScalePieces)
                       : reinterpret_cast<const uint4*>(args.group_scales) + group * 4 + factor;
    factor_stride_ = is_zero ? kZeroPieces : kScalePieces;
    copies_factor_ = lane < kRowTiles * kFactorPieces && (!is_zero || args.group_zeros != nullptr);
    // Or the compiler would compute each of them again for every step.
#pragma unroll
    for (auto& pieces : pieces_) asm volatile("" : "+l"(pieces));
    asm volatile("" : "+l"(factors_), "+r"(copies_factor_));
  }
  __device__ void Begin() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step < num_steps_) CopyNext(ring_.steps[step]);
      CommitCopies();
    }
  }
  __device__ void Wait() const {
    WaitForCopies<kSteps - 1>();
    __syncwarp();  // other lanes copied factors
  }
  template <typename T, int kTokenTiles>
  __device__ void Multiply(const uint32_t (&x)[kTokenTiles][kLaneWords<W>],
                           float (&sums)[kRowTiles][kTokenTiles][4]) const {
    const Step& step = ring_.steps[place_];
    const int row = lane_ / 4;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const auto* const factors = reinterpret_cast<const float2*>(step.factors[tile]);
      const auto* const zeros = reinterpret_cast<const uint32_t*>(factors + 8 * kScales);
      float2 scales[kScales];
#pragma unroll
      for (int i = 0; i < kScales; ++i) scales[i] = factors[8 * i + row];
      uint32_t low[kLaneWords<W>];
      uint32_t high[kLaneWords<W>];
      UnpackTile<T, W>(
          step.pieces[tile][lane_],
          [&](int i) {
            return args_.group_zeros == nullptr ? kMiddleZeros<T> : zeros[8 * i + row];
          },
          low, high);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        MultiplyUnit<T, W>(sums[tile][tokens], low, high, x[tokens],
                           [&](int i) { return scales[i]; });
      }
    }
  }
  __device__ void Next(int step) {
    __syncwarp();  // all have read the step
    if (step + kSteps < num_steps_) CopyNext(ring_.steps[place_]);
    CommitCopies();
    if (++place_ == kSteps) place_ = 0;
  }

 private:
  __device__ void CopyNext(Step& step) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      CopyPiece(SharedAddress(&step.pieces[tile][lane_]), pieces_[tile] + unit_ * 32, true);
    }
    // The units of a group find its factors in the L1 cache.
    CopyCachedPiece(SharedAddress(&step.factors[0][0] + lane_),
                    factors_ + (unit_ >> args_.group_shift) * factor_stride_, copies_factor_ != 0);
    ++unit_;
  }

  const LinearArgs& args_;
  Ring& ring_;
  const int lane_;
  const int num_steps_;
  int unit_;       // the next to copy
  int place_ = 0;  // of the step in the ring
  const uint4* pieces_[kRowTiles];
  const uint4* factors_;
  int factor_stride_;  // from one group to the next; of 32 columns: two groups
  int copies_factor_;  // whether this lane copies one
};

// A warp's part of a block's shared memory: first its ring of steps, then its sums. The pitch keeps
// the lanes' stores of sums in different banks.
template <typename Weights, int kRowTiles, int kTokenTiles>
struct WarpMemory {
  union {
    typename Weights::Ring ring;
    float sums[8 * kTokenTiles][16 * kRowTiles + 4];
  };
};

// A lane's activations: one row of each tile of tokens, from the next of `num_steps` steps to load
// on. Tokens past the last are read as the last and never stored. Plain loads: the previous kernel
// may still have been writing when this one began.
template <typename W, int kTokenTiles, bool kWhole, bool kPlanned>
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
      rows_[tile] = TokenRow<kPlanned>(args, min(8 * tile + lane / 4, args.tokens - 1));
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
// Another number of warps than kSegments is another order of summation.
// kEarly: this is the kernel's first work, and it begins here; else the product is an item of a
// plan.
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated,
          bool kEarly>
__device__ __forceinline__ void StreamRows(const LinearArgs& args, int first_row, uint4* shared) {
  constexpr int kOutputs = (kGated ? 8 : 16) * kRowTiles;
  using Weights = WarpWeights<W, kRowTiles, kWhole, kGated>;
  // Of each warp.
  auto* const memory = reinterpret_cast<WarpMemory<Weights, kRowTiles, kTokenTiles>*>(shared);

  const int thread = static_cast<int>(threadIdx.x);
  // Known to be the same for all lanes of the warp.
  const int warp = static_cast<int>(__shfl_sync(~0U, threadIdx.x / 32, 0));
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  const int begin = warp * args.segment;
  const int end = min(begin + args.segment, args.cols);
  const int num_steps = (max(end - begin, 0) + kStepCols<W> - 1) / kStepCols<W>;

  Weights weights(args, memory[warp].ring, first_row, lane, begin, num_steps);
  weights.Begin();
  // A thread stores results of one row (and of its up row).
  const int out_row = first_row + thread % kOutputs;
  const int read_row = min(out_row, args.rows - 1);
  const RowResult<T, W> result(args, read_row);
  const RowResult<T, W> up_result(args, kGated ? read_row + args.rows : read_row);
  // Everything else waits for the previous kernel.
  if constexpr (kEarly) BeginKernel();

  using Activations = LaneActivations<W, kTokenTiles, kWhole, !kEarly>;
  Activations activations(args, lane, begin, num_steps);
  // Two steps, because one is multiplied faster than L2 answers; one where registers are short.
  constexpr int kAhead = kTokenTiles == 1 || kRowTiles == 2 ? 2 : 1;
  // Activations that are not converted stay where they were loaded until they have been multiplied.
  constexpr bool kLoadsLate = kIsInt4<W>;
  typename Activations::Step ahead[kAhead];
  if (num_steps > 0) {
#pragma unroll
    for (auto& step : ahead) activations.LoadNext(step);
  }
  float sums[kRowTiles][kTokenTiles][4] = {};
#pragma unroll 1
  for (int first = 0; first < num_steps; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= num_steps) break;
      auto x = ahead[i];
#pragma unroll
      for (auto& words : x.words) ConvertActivations<T, W>(words);
      if constexpr (!kLoadsLate) activations.LoadNext(ahead[i]);
      weights.Wait();
      weights.template Multiply<T>(x.words, sums);
      if constexpr (kLoadsLate) activations.LoadNext(ahead[i]);
      weights.Next(first + i);
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
__global__ void __launch_bounds__(kThreads, WarpWeights<W, kRowTiles, kWhole, kGated>::kBlocksPerSm)
    StreamingKernel(const __grid_constant__ LinearArgs args) {
  extern __shared__ uint4 shared[];
  StreamRows<T, W, kRowTiles, kTokenTiles, kWhole, kGated, true>(
      args, static_cast<int>(blockIdx.x) * (kGated ? 8 : 16) * kRowTiles, shared);
}

// The blocks take the `parts` of every item in turn.
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated>
__global__ void __launch_bounds__(kThreads, WarpWeights<W, kRowTiles, kWhole, kGated>::kBlocksPerSm)
    StreamingExpertsKernel(const __grid_constant__ ExpertProduct product, int parts) {
  extern __shared__ uint4 shared[];
  __shared__ LinearArgs args;
  BeginKernel();
  const int units = *product.num_items * parts;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    __syncthreads();  // all have left the last part
    if (threadIdx.x == 0) MakeItemArgs<T, W>(product, unit / parts, args);
    __syncthreads();
    StreamRows<T, W, kRowTiles, kTokenTiles, kWhole, kGated, false>(
        args, unit % parts * (kGated ? 8 : 16) * kRowTiles, shared);
  }
}

template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated>
constexpr int kMemoryBytes =
    kSegments * static_cast<int>(sizeof(
                    WarpMemory<WarpWeights<W, kRowTiles, kWhole, kGated>, kRowTiles, kTokenTiles>));

template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated>
void Launch(const Context& context, const LinearArgs& args) {
  const auto kernel = StreamingKernel<T, W, kRowTiles, kTokenTiles, kWhole, kGated>;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(args.rows, (kGated ? 8 : 16) * kRowTiles)));
  constexpr int kBytes = kMemoryBytes<T, W, kRowTiles, kTokenTiles, kWhole, kGated>;
  TakeSharedMemory(kernel, kBytes, "the shared memory of a product");
  LaunchEarly(context, "a product with few tokens", kernel, blocks, kThreads, kBytes, args);
}

template <typename T, typename W, bool kGated>
void LaunchWhole(const Context& context, const LinearArgs& args) {
  const StreamingProduct product{.rows = int64_t{args.rows} * (kGated ? 2 : 1),
                                 .tokens = args.tokens,
                                 .num_sms = context.num_sms};
  const auto launch = [&]<int kRowTiles>() {
    args.tokens <= 8 ? Launch<T, W, kRowTiles, 1, true, kGated>(context, args)
                     : Launch<T, W, kRowTiles, 2, true, kGated>(context, args);
  };
  const int rows = kIsInt4<W> ? StreamingInt4Rows(product) : StreamingRows(product);
  // Blocks of one size suffice for groups of 32, which are rare; gate and up rows are tiles of
  // their own.
  if constexpr (kUnitScales<W> < 2) {
    if (rows == 64) return launch.template operator()<4>();
    if constexpr (!(kGated && kIsInt4<W>)) {
      if (rows == 16) return launch.template operator()<1>();
    }
  }
  launch.template operator()<2>();
}

template <typename T, typename W, int kTokenTiles, bool kWhole, bool kGated, int kRowTiles = 2>
void LaunchExperts(const Context& context, const ExpertProduct& product) {
  const auto kernel = StreamingExpertsKernel<T, W, kRowTiles, kTokenTiles, kWhole, kGated>;
  const int64_t parts = CeilDiv(product.args.rows, (kGated ? 8 : 16) * kRowTiles);
  constexpr int kBytes = kMemoryBytes<T, W, kRowTiles, kTokenTiles, kWhole, kGated>;
  constexpr int kPerSm = WarpWeights<W, kRowTiles, kWhole, kGated>::kBlocksPerSm;
  TakeSharedMemory(kernel, kBytes, "the shared memory of products of experts");
  LaunchEarly(context, "products of experts with few tokens", kernel,
              BlocksOfUnits(context, kPerSm, product.most_items * parts), kThreads, kBytes, product,
              static_cast<int>(parts));
}

}  // namespace

template <typename T, typename W>
void LaunchStreamingQuantizedExperts(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  if (!HasWholeUnits(product.args)) {
    LaunchExperts<T, W, 2, false, false, 1>(context, product);
  } else if (product.tile > 8) {
    LaunchExperts<T, W, 2, true, false>(context, product);
  } else {
    LaunchExperts<T, W, 1, true, false>(context, product);
  }
}

template <typename T, typename W>
void LaunchStreamingQuantizedExpertsGated(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens && HasWholeUnits(product.args) &&
                   (!kIsInt4<W> || product.args.rows % 16 == 0),
               "the streaming kernel does not take this");
  product.tile > 8 ? LaunchExperts<T, W, 2, true, true>(context, product)
                   : LaunchExperts<T, W, 1, true, true>(context, product);
}

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

#define TANDEM_STREAMING(T, W)                                                               \
  template void LaunchStreamingQuantized<T, W>(const Context&, const LinearArgs&);           \
  template void LaunchStreamingQuantizedGated<T, W>(const Context&, const LinearArgs&);      \
  template void LaunchStreamingQuantizedExperts<T, W>(const Context&, const ExpertProduct&); \
  template void LaunchStreamingQuantizedExpertsGated<T, W>(const Context&, const ExpertProduct&)
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
