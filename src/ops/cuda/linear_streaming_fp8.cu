// Products with few tokens and weights of fp8. Their time is the time to read the weights: a block
// takes 16 to 64 rows, each of its warps one segment of their columns, and several steps of weights
// are on the way to shared memory at any time. Every lane copies exactly the pieces that it
// multiplies itself, so that no barrier is needed. The activations come through the L1 cache.
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

// A warp's part of a block's shared memory: first its ring of steps, then its sums. The pitch keeps
// the lanes' stores of sums in different banks.
template <int kRowTiles, int kTokenTiles>
struct WarpMemory {
  using Step = uint4[2 * kRowTiles][32];
  static constexpr int kSteps =
      StreamingBlockBytes(16 * kRowTiles) / kSegments / static_cast<int>(sizeof(Step));
  union {
    Step steps[kSteps];
    float sums[8 * kTokenTiles][16 * kRowTiles + 4];
  };
};

// A lane's weights: two rows of each tile, from the next step to copy on. kWhole: no step passes
// the last column.
template <int kRowTiles, bool kWhole, bool kGated>
class LaneWeights {
 public:
  __device__ LaneWeights(const LinearArgs& args, int first_row, int group, int col)
      : left_(args.cols - col) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = TileRow<kGated>(args, first_row, tile, half, group);
        next_[tile][half] =
            static_cast<const Fp8*>(args.weight) + static_cast<int64_t>(row) * args.pitch + col;
      }
    }
  }
  // Zeros after the last column.
  __device__ void CopyNext(uint4 (&step)[2 * kRowTiles][32], int lane) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        CopyPiece(SharedAddress(&step[2 * tile + half][lane]), next_[tile][half],
                  kWhole || left_ > 0);
        next_[tile][half] += kStepCols<Fp8>;
      }
    }
    if constexpr (!kWhole) left_ -= kStepCols<Fp8>;
  }

 private:
  int left_;  // columns
  const Fp8* next_[kRowTiles][2];
};

// A lane's activations: one row of each tile of tokens, from the next of `num_steps` steps to load
// on. Tokens past the last are read as the last and never stored. Plain loads: the previous kernel
// may still have been writing when this one began.
template <int kTokenTiles, bool kWhole>
class LaneActivations {
 public:
  struct Step {
    uint32_t words[kTokenTiles][kLaneWords<Fp8>];
  };

  __device__ LaneActivations(const LinearArgs& args, int group, int col, int num_steps)
      : cols_(args.cols), col_(col), last_col_(col + (num_steps - 1) * kStepCols<Fp8>) {
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
      rows_[tile] = static_cast<const uint16_t*>(args.x) +
                    static_cast<int64_t>(min(8 * tile + group, args.tokens - 1)) * args.cols;
    }
  }
  // Zeros after the last column; after the last step that one again.
  __device__ void LoadNext(Step& step) {
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < kLaneWords<Fp8>; i += 4) {
        const int col = col_ + 2 * i;
        const uint4 piece = kWhole ? *reinterpret_cast<const uint4*>(rows_[tile] + col)
                                   : LoadUnaligned(rows_[tile], col, cols_);
        step.words[tile][i] = piece.x;
        step.words[tile][i + 1] = piece.y;
        step.words[tile][i + 2] = piece.z;
        step.words[tile][i + 3] = piece.w;
      }
    }
    col_ = min(col_ + kStepCols<Fp8>, last_col_);
  }

 private:
  int cols_;
  int col_;
  int last_col_;
  const uint16_t* rows_[kTokenTiles];
};

// kRowTiles * 16 weight rows per block, kTokenTiles * 8 tokens. kWhole: HasWholeUnits(args).
template <typename T, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated>
__global__ void __launch_bounds__(kThreads, kWhole ? StreamingBlocksPerSm(16 * kRowTiles) : 2)
    StreamingKernel(const LinearArgs args) {
  constexpr int kOutputs = (kGated ? 8 : 16) * kRowTiles;
  using Memory = WarpMemory<kRowTiles, kTokenTiles>;
  extern __shared__ uint4 shared[];
  auto* const memory = reinterpret_cast<Memory*>(shared);  // of each warp

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  const int first_row = static_cast<int>(blockIdx.x) * kOutputs;
  const int begin = warp * args.segment;
  const int end = min(begin + args.segment, args.cols);
  const int num_steps = (max(end - begin, 0) + kStepCols<Fp8> - 1) / kStepCols<Fp8>;
  const int col = begin + quad * kLaneCols<Fp8>;

  LaneWeights<kRowTiles, kWhole, kGated> weights(args, first_row, group, col);
#pragma unroll
  for (int step = 0; step < Memory::kSteps; ++step) {
    if (step < num_steps) weights.CopyNext(memory[warp].steps[step], lane);
    CommitCopies();
  }
  // A thread stores results of one row (and of its up row).
  const int out_row = first_row + thread % kOutputs;
  const int read_row = min(out_row, args.rows - 1);
  const RowResult<T, Fp8> result(args, read_row);
  const RowResult<T, Fp8> up_result(args, kGated ? read_row + args.rows : read_row);
  // Everything else waits for the previous kernel.
  BeginKernel();

  LaneActivations<kTokenTiles, kWhole> activations(args, group, col, num_steps);
  // Two steps, because one is multiplied faster than L2 answers; one where registers are short.
  constexpr int kAhead = kTokenTiles == 1 || kRowTiles == 2 ? 2 : 1;
  typename LaneActivations<kTokenTiles, kWhole>::Step ahead[kAhead];
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
      for (auto& words : x.words) ConvertActivations<T, Fp8>(words);
      activations.LoadNext(ahead[i]);
      WaitForCopies<Memory::kSteps - 1>();
      auto& pieces = memory[warp].steps[place];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        uint32_t low[kLaneWords<Fp8>];
        uint32_t high[kLaneWords<Fp8>];
        UnpackWeights<Fp8>(pieces[2 * tile][lane], low);
        UnpackWeights<Fp8>(pieces[2 * tile + 1][lane], high);
#pragma unroll
        for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
          MultiplyStep<T, Fp8>(sums[tile][tokens], low, high, x.words[tokens]);
        }
      }
      if (first + i + Memory::kSteps < num_steps) weights.CopyNext(pieces, lane);
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
      const int place = GatePlace(at);
      const float gate = Rounded<T>(result.Of(sum_at(place)));
      const float up = Rounded<T>(up_result.Of(sum_at(place + 8)));
      Store<T>(args, token, out_row, SwiGluOf(gate, up));
    } else {
      Store<T>(args, token, out_row, result.Of(sum_at(at)));
    }
  }
}

template <typename T, int kRowTiles, int kTokenTiles, bool kWhole, bool kGated>
void Launch(const Context& context, const LinearArgs& args) {
  const auto kernel = StreamingKernel<T, kRowTiles, kTokenTiles, kWhole, kGated>;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(args.rows, (kGated ? 8 : 16) * kRowTiles)));
  constexpr int kBytes = kSegments * static_cast<int>(sizeof(WarpMemory<kRowTiles, kTokenTiles>));
  TakeSharedMemory(kernel, kBytes, "the shared memory of a product");
  LaunchEarly(context, "a product with few tokens", kernel, blocks, kThreads, kBytes, args);
}

template <typename T, bool kGated>
void LaunchWhole(const Context& context, const LinearArgs& args) {
  const int rows = StreamingRows({.rows = int64_t{args.rows} * (kGated ? 2 : 1),
                                  .tokens = args.tokens,
                                  .num_sms = context.num_sms});
  const auto launch = [&]<int kRowTiles>() {
    args.tokens <= 8 ? Launch<T, kRowTiles, 1, true, kGated>(context, args)
                     : Launch<T, kRowTiles, 2, true, kGated>(context, args);
  };
  rows == 16   ? launch.template operator()<1>()
  : rows == 32 ? launch.template operator()<2>()
               : launch.template operator()<4>();
}

}  // namespace

template <typename T>
void LaunchStreamingFp8(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  HasWholeUnits(args) ? LaunchWhole<T, false>(context, args)
                      : Launch<T, 1, 2, false, false>(context, args);
}

template <typename T>
void LaunchStreamingFp8Gated(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args),
               "the streaming kernel does not take this");
  LaunchWhole<T, true>(context, args);
}

template void LaunchStreamingFp8<Bf16>(const Context&, const LinearArgs&);
template void LaunchStreamingFp8<Fp16>(const Context&, const LinearArgs&);
template void LaunchStreamingFp8Gated<Bf16>(const Context&, const LinearArgs&);
template void LaunchStreamingFp8Gated<Fp16>(const Context&, const LinearArgs&);

}  // namespace tandem::ops::cuda
