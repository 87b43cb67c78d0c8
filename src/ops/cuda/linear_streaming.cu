// Products with few tokens and weights of 16 bits. Their time is the time to read the weights: a
// block takes 16 or 32 rows, each of its warps one segment of their columns, and keeps several
// steps of weights in flight in registers. The activations come through the L1 cache. (A ring in
// shared memory, as for fp8, is up to 13 % slower here: docs/decisions/0017.)

#include "ops/cuda/dependent_launch.cuh"
#include "ops/cuda/linear_kernels.cuh"
#include "ops/cuda/product_results.cuh"
#include "ops/cuda/swiglu.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 32 * kSegments;
constexpr int kBlocksPerSm = 2;
constexpr size_t kReservedBytes = 1024;  // shared memory per block, for the system

// A lane's activations of one token from `col` on; zeros if `valid` is false and after the end.
// kAligned: rows begin at multiples of 16 bytes. Plain loads: the previous kernel may still have
// been writing when this one began.
template <typename T, bool kAligned>
__device__ void LoadActivations(const uint16_t* row, int col, int cols, bool valid,
                                uint32_t (&words)[kLaneWords<T>]) {
#pragma unroll
  for (int i = 0; i < kLaneWords<T>; i += 4) {
    const int at = col + 2 * i;
    uint4 piece = make_uint4(0, 0, 0, 0);
    if (valid && at < cols) {
      piece = kAligned ? *reinterpret_cast<const uint4*>(row + at) : LoadUnaligned(row, at, cols);
    }
    words[i] = piece.x;
    words[i + 1] = piece.y;
    words[i + 2] = piece.z;
    words[i + 3] = piece.w;
  }
}

// The next kAhead steps of weights; zeros after `end`.
template <typename T, int kRowTiles, int kAhead>
__device__ void LoadWeights(const T* const (&rows)[kRowTiles][2], int col, int end,
                            uint4 (&ahead)[kAhead][kRowTiles][2]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int at = col + i * kStepCols<T>;
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ahead[i][tile][half] = at < end ? LoadOnce(rows[tile][half] + at) : make_uint4(0, 0, 0, 0);
      }
    }
  }
}

// The sums of the warps of a block for its rows, one per segment. The pitch keeps the lanes' stores
// in different banks.
template <int kRowTiles, int kTokenTiles>
using Partial = float[kSegments][8 * kTokenTiles][16 * kRowTiles + 4];

template <int kRowTiles, Results kResults>
constexpr int kOutputsOf = (kInPairs<kResults> ? 8 : 16) * kRowTiles;

// kRowTiles * 16 weight rows per block, kTokenTiles * 8 tokens, kAhead steps in flight. kEarly:
// this is the kernel's first work, and it begins here; else the product is an item of a plan.
template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Results kResults,
          bool kEarly>
__device__ __forceinline__ void StreamRows(const LinearArgs& args,
                                           [[maybe_unused]] const ResultsJob<kResults>& job,
                                           int first_output,
                                           Partial<kRowTiles, kTokenTiles>& partial) {
  constexpr int kOutputs = kOutputsOf<kRowTiles, kResults>;
  constexpr int kTokens = 8 * kTokenTiles;

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = static_cast<int>(threadIdx.x) % 32 / 4;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const int begin = warp * args.segment;
  const int end = min(begin + args.segment, args.cols);

  const T* weights[kRowTiles][2];
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = TileRow<kResults>(args, first_output, tile, half, group);
      weights[tile][half] =
          static_cast<const T*>(args.weight) + static_cast<int64_t>(row) * args.pitch;
    }
  }
  const uint16_t* x[kTokenTiles];
  bool has_token[kTokenTiles];
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const int token = 8 * tile + group;
    has_token[tile] = token < args.tokens;
    x[tile] = TokenRow<!kEarly>(args, has_token[tile] ? token : 0);
  }

  float sums[kRowTiles][kTokenTiles][4] = {};
  uint4 ahead[kAhead][kRowTiles][2];
  constexpr int kStride = kAhead * kStepCols<T>;
  int col = begin + quad * kLaneCols<T>;
  LoadWeights<T>(weights, col, end, ahead);
  // Weights are loaded early; everything else waits for the previous kernel.
  if constexpr (kEarly) BeginKernel();
  // A thread stores one output of kTokensOfThread tokens. take(i, token): of the i-th, if there is
  // one.
  static_assert(kThreads % kOutputs == 0);
  constexpr int kTokensOfThread = static_cast<int>(CeilDiv(kOutputs * kTokens, kThreads));
  const int thread = static_cast<int>(threadIdx.x);
  const int stored = first_output + thread % kOutputs;
  const auto for_tokens = [&](const auto& take) {
#pragma unroll
    for (int i = 0; i < kTokensOfThread; ++i) {
      const int token = thread / kOutputs + i * (kThreads / kOutputs);
      if (token < args.tokens && stored < args.rows) take(i, token);
    }
  };
  using Output = ResultsOutput<T, kResults, kOutputs>;
  [[maybe_unused]] typename Output::Asked asked[kTokensOfThread];
  [[maybe_unused]] typename Output::Early early[kTokensOfThread];
  if constexpr (kHasOutput<kResults>) {
    for_tokens([&](int i, int token) { asked[i] = Output(job, args, stored).Ask(token); });
  }
  const auto prepare = [&] {
    if constexpr (kHasOutput<kResults>) {
      for_tokens(
          [&](int i, int token) { early[i] = Output(job, args, stored).Prepare(asked[i], token); });
    }
  };
  // With more tokens registers are short, and other blocks hide that the loads come last.
  constexpr bool kLoadsSquaresFirst = kTokenTiles == 1;
  int64_t squares[kTokensOfThread] = {};
  const auto load_squares = [&] {
    if (!kEarly || args.squares == nullptr) return;
    for_tokens([&](int i, int token) { squares[i] = args.squares[token]; });
  };
  if constexpr (kLoadsSquaresFirst) load_squares();
  if (begin >= end) prepare();
  for (int step = begin; step < end; step += kStride, col += kStride) {
    uint32_t activations[kAhead][kTokenTiles][kLaneWords<T>];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = col + i * kStepCols<T>;
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        LoadActivations<T, kAligned>(x[tile], at, args.cols, has_token[tile] && at < end,
                                     activations[i][tile]);
      }
    }
    if (step == begin) prepare();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        uint32_t low[kLaneWords<T>];
        uint32_t high[kLaneWords<T>];
        UnpackWeights<T>(ahead[i][tile][0], low);
        UnpackWeights<T>(ahead[i][tile][1], high);
#pragma unroll
        for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
          MultiplyStep<T, T>(sums[tile][tokens], low, high, activations[i][tokens]);
        }
      }
    }
    LoadWeights<T>(weights, col + kStride, end, ahead);
  }

  if constexpr (!kLoadsSquaresFirst) load_squares();
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        partial[warp][8 * tokens + 2 * quad + i % 2][16 * tile + 8 * (i / 2) + group] =
            sums[tile][tokens][i];
      }
    }
  }
  __syncthreads();
  for_tokens([&](int i, int token) {
    const float factor = kEarly ? TokenFactor(args, squares[i]) : 1.0f;
    const auto result_of = [&](int row, int place) {
      return RowResult<T, T>(args, row).Of(
          factor * AddSegments([&](int segment) { return partial[segment][token][place]; }));
    };
    const int row = RowOfOutput<kResults>(args, stored);
    const int at = thread % kOutputs;
    const auto store = [&](auto... values) {
      if constexpr (kHasOutput<kResults>) {
        Output(job, args, stored).Store(early[i], token, values...);
      } else if constexpr (kResults == Results::kGated) {
        Store<T>(args, token, stored, SwiGluOf(values...));
      } else {
        Store<T>(args, token, stored, values...);
      }
    };
    if constexpr (kInPairs<kResults>) {
      const int place = PlaceInPairs<8>(at);
      store(Rounded<T>(result_of(row, place)),
            Rounded<T>(result_of(row + RowsToOther<kResults>(args), place + 8)));
    } else {
      store(result_of(row, at));
    }
  });
}

template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Results kResults>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    StreamingKernel(const __grid_constant__ LinearArgs args,
                    const __grid_constant__ ResultsJob<kResults> job) {
  __shared__ Partial<kRowTiles, kTokenTiles> partial;
  const int first_output = static_cast<int>(blockIdx.x) * kOutputsOf<kRowTiles, kResults>;
  StreamRows<T, kRowTiles, kTokenTiles, kAhead, kAligned, kResults, true>(args, job, first_output,
                                                                          partial);
}

// The blocks take the `parts` of every item in turn.
template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Results kResults>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    StreamingExpertsKernel(const __grid_constant__ ExpertProduct product, int parts) {
  __shared__ Partial<kRowTiles, kTokenTiles> partial;
  __shared__ LinearArgs args;
  BeginKernel();
  const int units = *product.num_items * parts;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    __syncthreads();  // all have left the last part
    if (threadIdx.x == 0) MakeItemArgs<T, T>(product, unit / parts, args);
    __syncthreads();
    StreamRows<T, kRowTiles, kTokenTiles, kAhead, kAligned, kResults, false>(
        args, {}, unit % parts * kOutputsOf<kRowTiles, kResults>, partial);
  }
}

// Loads in flight occupy space in the L1 cache. A kernel that does not state how little shared
// memory it needs runs with the previous kernel's setting: after attention, which takes most of it,
// products of 16-bit weights took up to 50 % longer.
template <typename Kernel>
void LeaveTheRestToL1(const Context& context, Kernel kernel, size_t block_bytes) {
  const size_t bytes = kBlocksPerSm * (block_bytes + kReservedBytes);
  const auto all = static_cast<size_t>(context.shared_bytes) + kReservedBytes;
  CheckCuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributePreferredSharedMemoryCarveout,
                                 static_cast<int>((100 * bytes + all - 1) / all)),
            "the shared memory of a product");
}

template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Results kResults>
void Launch(const Context& context, const LinearArgs& args, const ResultsJob<kResults>& job) {
  const auto kernel = StreamingKernel<T, kRowTiles, kTokenTiles, kAhead, kAligned, kResults>;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(args.rows, kOutputsOf<kRowTiles, kResults>)));
  LeaveTheRestToL1(context, kernel, sizeof(Partial<kRowTiles, kTokenTiles>));
  LaunchEarly(context, "a product with few tokens", kernel, blocks, kThreads, 0, args, job);
}

template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Results kResults>
void LaunchExperts(const Context& context, const ExpertProduct& product) {
  const auto kernel = StreamingExpertsKernel<T, kRowTiles, kTokenTiles, kAhead, kAligned, kResults>;
  const int64_t parts = CeilDiv(product.args.rows, kOutputsOf<kRowTiles, kResults>);
  LeaveTheRestToL1(context, kernel, sizeof(Partial<kRowTiles, kTokenTiles>) + sizeof(LinearArgs));
  LaunchEarly(context, "products of experts with few tokens", kernel,
              BlocksOfUnits(context, kBlocksPerSm, product.most_items * parts), kThreads, 0,
              product, static_cast<int>(parts));
}

template <typename T, Results kResults>
void LaunchAligned(const Context& context, const LinearArgs& args,
                   const ResultsJob<kResults>& job) {
  // Larger blocks read the activations less often, but there must be enough blocks to fill the GPU.
  const bool many_rows = args.rows * (kInPairs<kResults> ? 2 : 1) >= 64 * context.num_sms;
  if (args.tokens > 8) {
    Launch<T, 2, 2, 2, true, kResults>(context, args, job);
  } else if (args.tokens > 4 || many_rows) {
    Launch<T, 2, 1, 2, true, kResults>(context, args, job);
  } else {
    Launch<T, 1, 1, 4, true, kResults>(context, args, job);
  }
}

}  // namespace

template <typename T>
void LaunchStreaming(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  HasWholePieces(args) ? LaunchAligned<T, Results::kPlain>(context, args, {})
                       : Launch<T, 1, 2, 2, false, Results::kPlain>(context, args, {});
}

template <typename T>
void LaunchStreamingGated(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args),
               "the streaming kernel does not take this");
  if (args.tokens > 8) {
    Launch<T, 2, 2, 2, true, Results::kGated>(context, args, {});
  } else {
    Launch<T, 2, 1, 2, true, Results::kGated>(context, args, {});
  }
}

template <typename T>
void LaunchStreamingTurned(const Context& context, const LinearArgs& args, const RopeJob& job) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   args.half_head % kHalfHeadMultiple<T> == 0,
               "the streaming kernel does not take this");
  LaunchAligned<T, Results::kTurned>(context, args, job);
}

template <typename T>
void LaunchStreamingAdded(const Context& context, const LinearArgs& args, const AddJob& job) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   args.rows % kAddedRowsMultiple == 0,
               "the streaming kernel does not take this");
  LaunchAligned<T, Results::kAdded>(context, args, job);
}

template <typename T>
void LaunchStreamingExperts(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  if (!HasWholePieces(product.args)) {
    LaunchExperts<T, 1, 2, 2, false, Results::kPlain>(context, product);
  } else if (product.tile > 8) {
    LaunchExperts<T, 2, 2, 2, true, Results::kPlain>(context, product);
  } else {
    LaunchExperts<T, 2, 1, 2, true, Results::kPlain>(context, product);
  }
}

template <typename T>
void LaunchStreamingExpertsGated(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens && HasWholeUnits(product.args),
               "the streaming kernel does not take this");
  if (product.tile > 8) {
    LaunchExperts<T, 2, 2, 2, true, Results::kGated>(context, product);
  } else {
    LaunchExperts<T, 2, 1, 2, true, Results::kGated>(context, product);
  }
}

template void LaunchStreamingExperts<Bf16>(const Context&, const ExpertProduct&);
template void LaunchStreamingExperts<Fp16>(const Context&, const ExpertProduct&);
template void LaunchStreamingExpertsGated<Bf16>(const Context&, const ExpertProduct&);
template void LaunchStreamingExpertsGated<Fp16>(const Context&, const ExpertProduct&);
template void LaunchStreaming<Bf16>(const Context&, const LinearArgs&);
template void LaunchStreaming<Fp16>(const Context&, const LinearArgs&);
template void LaunchStreamingGated<Bf16>(const Context&, const LinearArgs&);
template void LaunchStreamingGated<Fp16>(const Context&, const LinearArgs&);
template void LaunchStreamingAdded<Bf16>(const Context&, const LinearArgs&, const AddJob&);
template void LaunchStreamingTurned<Bf16>(const Context&, const LinearArgs&, const RopeJob&);
template void LaunchStreamingTurned<Fp16>(const Context&, const LinearArgs&, const RopeJob&);

}  // namespace tandem::ops::cuda
