// Products of experts with few tokens each and weights of 16 bits. Their time is the time to read
// the weights: a block takes 16 or 32 rows of an expert at a time, each of its warps one segment of
// their columns, and keeps several steps of weights in flight in registers. The activations come
// through the L1 cache. (Those with quantized weights go through a ring in shared memory, as all
// products of single weights do: linear_streaming.cu.)

#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/linear/linear_kernels.cuh"
#include "ops/cuda/linear/swiglu.cuh"

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

// kRowTiles * 16 weight rows per block, kTokenTiles * 8 tokens, kAhead steps in flight.
template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Epilogue kEpilogue>
__device__ __forceinline__ void StreamRows(const LinearArgs& args, int first_output,
                                           WarpSums<kRowTiles, kTokenTiles> (&partial)[kSegments]) {
  constexpr int kOutputs = kOutputsOf<kRowTiles, kEpilogue>;
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
      const int row = TileRow<kEpilogue>(args, first_output, tile, half, group);
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
    x[tile] = TokenRow<true>(args, has_token[tile] ? token : 0);
  }

  float sums[kRowTiles][kTokenTiles][4] = {};
  uint4 ahead[kAhead][kRowTiles][2];
  constexpr int kStride = kAhead * kStepCols<T>;
  int col = begin + quad * kLaneCols<T>;
  LoadWeights<T>(weights, col, end, ahead);
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

  KeepSums<kRowTiles, kTokenTiles>(static_cast<int>(threadIdx.x) % 32, sums, partial[warp]);
  __syncthreads();
  // A thread stores one output of several tokens.
  static_assert(kThreads % kOutputs == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int at = thread % kOutputs;
  const int stored = first_output + at;
  if (stored >= args.rows) return;
  for (int token = thread / kOutputs; token < args.tokens; token += kThreads / kOutputs) {
    const auto result_of = [&](int row, int place) {
      return RowResult<T, T>(args, row).Of(
          AddSegments([&](int segment) { return partial[segment][token][place]; }));
    };
    if constexpr (kEpilogue == Epilogue::kGated) {
      const int place = PlaceInPairs<8>(at);
      const float gate = Rounded<T>(result_of(stored, place));
      const float up = Rounded<T>(result_of(stored + RowsToOther<kEpilogue>(args), place + 8));
      Store<T>(args, token, stored, SwiGluOf(gate, up));
    } else {
      Store<T>(args, token, stored, result_of(stored, at));
    }
  }
}

// The blocks take the `parts` of every item in turn.
template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Epilogue kEpilogue>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    StreamingExpertsKernel(const __grid_constant__ ExpertProduct product, int parts) {
  __shared__ WarpSums<kRowTiles, kTokenTiles> partial[kSegments];
  __shared__ LinearArgs args;
  BeginKernel();
  const int units = *product.num_items * parts;
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    __syncthreads();  // all have left the last part
    if (threadIdx.x == 0) MakeItemArgs<T, T>(product, unit / parts, args);
    __syncthreads();
    StreamRows<T, kRowTiles, kTokenTiles, kAhead, kAligned, kEpilogue>(
        args, unit % parts * kOutputsOf<kRowTiles, kEpilogue>, partial);
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

template <typename T, int kRowTiles, int kTokenTiles, int kAhead, bool kAligned, Epilogue kEpilogue>
void LaunchExperts(const Context& context, const ExpertProduct& product) {
  const auto kernel =
      StreamingExpertsKernel<T, kRowTiles, kTokenTiles, kAhead, kAligned, kEpilogue>;
  const int64_t parts = CeilDiv(product.args.rows, kOutputsOf<kRowTiles, kEpilogue>);
  LeaveTheRestToL1(context, kernel,
                   kSegments * sizeof(WarpSums<kRowTiles, kTokenTiles>) + sizeof(LinearArgs));
  LaunchEarly(context, "products of experts with few tokens", kernel,
              BlocksOfUnits(context, kBlocksPerSm, product.most_items * parts), kThreads, 0,
              product, static_cast<int>(parts));
}

}  // namespace

template <typename T>
void LaunchWideExperts(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens && !HasFactors(product.args),
               "the streaming kernel does not take this");
  if (!HasWholePieces(product.args)) {
    LaunchExperts<T, 1, 2, 2, false, Epilogue::kPlain>(context, product);
  } else if (product.tile > 8) {
    LaunchExperts<T, 2, 2, 2, true, Epilogue::kPlain>(context, product);
  } else {
    LaunchExperts<T, 2, 1, 2, true, Epilogue::kPlain>(context, product);
  }
}

template <typename T>
void LaunchWideExpertsGated(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens && HasWholeUnits(product.args) &&
                   !HasFactors(product.args),
               "the streaming kernel does not take this");
  if (product.tile > 8) {
    LaunchExperts<T, 2, 2, 2, true, Epilogue::kGated>(context, product);
  } else {
    LaunchExperts<T, 2, 1, 2, true, Epilogue::kGated>(context, product);
  }
}

template void LaunchWideExperts<Bf16>(const Context&, const ExpertProduct&);
template void LaunchWideExperts<Fp16>(const Context&, const ExpertProduct&);
template void LaunchWideExpertsGated<Bf16>(const Context&, const ExpertProduct&);
template void LaunchWideExpertsGated<Fp16>(const Context&, const ExpertProduct&);

}  // namespace tandem::ops::cuda
