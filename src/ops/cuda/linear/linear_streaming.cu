// Products with few tokens. Their time is the time to read the weights: a block takes 16 to 80
// rows, each of its warps one segment of their columns, and several steps of weights and
// activations are on the way to the warp's shared memory at any time (StepRing in
// step_ring.cuh). How weights lie in memory and are widened is the policy WarpWeights.
//
// A block has an SM to itself where that is faster (streaming_blocks.h). Blocks of
// the next product start beside the last ones, and their first weights are there when the
// activations are.

#include <algorithm>

#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/linear/linear_kernels.cuh"
#include "ops/cuda/linear/product_epilogue.cuh"
#include "ops/cuda/linear/step_ring.cuh"
#include "ops/cuda/linear/streaming_blocks.h"
#include "ops/cuda/linear/swiglu.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 32 * kSegments;

// Where a thread is in its block, and the columns of its warp, a segment. Another number of warps
// than kSegments is another order of summation.
template <typename W>
struct LanePlace {
  __device__ explicit LanePlace(const LinearArgs& args)
      : thread(static_cast<int>(threadIdx.x)),
        // Known to be the same for all lanes of the warp.
        warp(static_cast<int>(__shfl_sync(~0U, threadIdx.x / 32, 0))),
        lane(thread % 32),
        begin(warp * args.segment) {
    const int cols = max(min(begin + args.segment, args.cols) - begin, 0);
    num_steps = (cols + kStepCols<W> - 1) / kStepCols<W>;
  }

  int thread;
  int warp;
  int lane;
  int begin;
  int num_steps;
};

// The results of a block's rows: a thread stores those of one output and kTokens tokens.
template <typename T, typename W, int kRowTiles, int kTokenTiles, Epilogue kEpilogue>
class BlockResults {
 public:
  static constexpr int kOutputs = kOutputsOf<kRowTiles, kEpilogue>;
  // Threads past the last whole set of outputs have none.
  static constexpr int kTokensAtOnce = kThreads / kOutputs;
  static constexpr int kTokens = static_cast<int>(CeilDiv(8 * kTokenTiles, kTokensAtOnce));

  __device__ BlockResults(const LinearArgs& args, int first_output, int thread)
      : output_(first_output + thread % kOutputs),
        result_(args, RowOf(args)),
        other_(args, RowOf(args) + (kInPairs<kEpilogue> ? RowsToOther<kEpilogue>(args) : 0)) {}

  // take(i, token): of the thread's i-th token, if there is one.
  template <typename Take>
  __device__ void ForTokens(const LinearArgs& args, int thread, const Take& take) const {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = thread / kOutputs + i * kTokensAtOnce;
      if (kThreads % kOutputs != 0 && thread / kOutputs == kTokensAtOnce) continue;
      if (output_ < args.rows && token < args.tokens) take(i, token);
    }
  }
  // take(i, token, result): of the thread's i-th token, or with both results of a pair, rounded.
  // sums_of(segment): of its warp. scale_of(i): TokenFactor.
  template <typename SumsOf, typename ScaleOf, typename Take>
  __device__ void TakeAll(const LinearArgs& args, int thread, const SumsOf& sums_of,
                          const ScaleOf& scale_of, const Take& take) const {
    ForTokens(args, thread, [&](int i, int token) {
      const int at = thread % kOutputs;
      const float scale = scale_of(i);
      const auto sum_at = [&](int place) {
        return scale * AddSegments([&](int segment) { return sums_of(segment)[token][place]; });
      };
      if constexpr (kInPairs<kEpilogue>) {
        constexpr int kSpan = kIsInt4<W> ? 16 : 8;
        const int place = PlaceInPairs<kSpan>(at);
        take(i, token, Rounded<T>(result_.Of(sum_at(place))),
             Rounded<T>(other_.Of(sum_at(place + kSpan))));
      } else {
        take(i, token, result_.Of(sum_at(at)));
      }
    });
  }
  // As out of the product.
  __device__ void Store(const LinearArgs& args, int token, float result) const {
    cuda::Store<T>(args, token, output_, result);
  }
  __device__ void Store(const LinearArgs& args, int token, float gate, float up) const {
    const float result = SwiGluOf(gate, up);
    if (args.out_is_factors) {
      const int64_t at = int64_t{token} * args.rows + output_;
      static_cast<Fp16*>(args.out)[at] = FactorOf<T>(Rounded<T>(result));
    } else {
      cuda::Store<T>(args, token, output_, result);
    }
  }
  __device__ int output() const { return output_; }

 private:
  __device__ int RowOf(const LinearArgs& args) const {
    return RowOfOutput<kEpilogue>(args, min(output_, args.rows - 1));
  }

  int output_;
  RowResult<T, W> result_;
  RowResult<T, W> other_;
};

// kRowTiles * 16 weight rows per block, kTokenTiles * 8 tokens. kWhole: HasWholeUnits(args).
// kPerSm: how many blocks run on an SM at a time.
template <typename T, typename W, int kRowTiles, int kTokenTiles, int kPerSm, bool kWhole,
          Epilogue kEpilogue>
struct OneProduct {
  static constexpr int kRingSteps =
      RingSteps<W, kRowTiles, kTokenTiles>(StreamingBlockBytes(kPerSm));
  static_assert(kRingSteps >= 2, "a step is on its way while another is multiplied");
  using Ring = StepRing<W, kRowTiles, kTokenTiles, kRingSteps, kWhole, kEpilogue>;
  using Block = BlockResults<T, W, kRowTiles, kTokenTiles, kEpilogue>;
  static constexpr int kOutputs = Block::kOutputs;
  // Of a warp: first its ring of steps, then its sums.
  union Memory {
    typename Ring::Memory ring;
    WarpSums<kRowTiles, kTokenTiles> sums;
  };
  static constexpr int kBytes =
      std::max(kSegments * static_cast<int>(sizeof(Memory)), kPerSm == 1 ? kLeastBytesAlone : 0);
};

template <typename T, typename W, int kRowTiles, int kTokenTiles, int kPerSm, bool kWhole,
          Epilogue kEpilogue>
__global__ void __launch_bounds__(kThreads, kPerSm)
    StreamingKernel(const __grid_constant__ LinearArgs args,
                    [[maybe_unused]] const __grid_constant__ EpilogueJob<kEpilogue> job) {
  using Product = OneProduct<T, W, kRowTiles, kTokenTiles, kPerSm, kWhole, kEpilogue>;
  extern __shared__ uint4 shared[];
  auto* const memory = reinterpret_cast<typename Product::Memory*>(shared);  // of each warp

  const LanePlace<W> at(args);
  const int first_output = static_cast<int>(blockIdx.x) * Product::kOutputs;
  typename Product::Ring ring(memory[at.warp].ring, at.lane);
  ring.weights.Aim(args, first_output, at.begin);
  ring.CopyFirstWeights(at.num_steps);
  const typename Product::Block results(args, first_output, at.thread);
  // Everything else waits for the previous kernel.
  BeginKernel();

  using Finish = EpilogueOf<T, kEpilogue, Product::kOutputs>;
  constexpr int kTokens = Product::Block::kTokens;
  const auto for_results = [&]([[maybe_unused]] const auto& take) {
    if constexpr (kHasEpilogue<kEpilogue>) {
      const Finish finish(job, args, results.output());
      results.ForTokens(args, at.thread, [&](int i, int token) { take(finish, i, token); });
    }
  };
  [[maybe_unused]] typename Finish::Asked asked[kTokens];
  for_results([&](const auto& finish, int i, int token) { asked[i] = finish.Ask(token); });
  // With more than 8 tokens registers are short, so these loads come last.
  constexpr bool kLoadsSquaresFirst = kTokenTiles == 1;
  int64_t squares[kTokens] = {};
  const auto load_squares = [&] {
    if (args.squares == nullptr) return;
    results.ForTokens(args, at.thread, [&](int i, int token) { squares[i] = args.squares[token]; });
  };
  if constexpr (kLoadsSquaresFirst) load_squares();

  using Activations = typename Product::Ring::Activations;
  ring.activations.Aim(args, at.begin, [&](int i) {
    return TokenRow<false>(args, min(Activations::CopiedToken(at.lane, i), args.tokens - 1));
  });
  ring.CopyFirstActivations(at.num_steps);
  [[maybe_unused]] typename Finish::Early early[kTokens];
  for_results(
      [&](const auto& finish, int i, int token) { early[i] = finish.Prepare(asked[i], token); });
  float sums[kRowTiles][kTokenTiles][4] = {};
  int to_copy = at.num_steps - Product::kRingSteps;
  ring.template AddProducts<T>(at.num_steps, [&] { return to_copy-- > 0; }, sums);
  if constexpr (!kLoadsSquaresFirst) load_squares();

  __syncwarp();
  KeepSums<kRowTiles, kTokenTiles>(at.lane, sums, memory[at.warp].sums);
  __syncthreads();
  results.TakeAll(
      args, at.thread, [&](int segment) -> const auto& { return memory[segment].sums; },
      [&](int i) { return TokenFactor(args, squares[i]); },
      [&](int i, int token, auto... values) {
        if constexpr (kHasEpilogue<kEpilogue>) {
          Finish(job, args, results.output()).Store(early[i], token, values...);
        } else {
          results.Store(args, token, values...);
        }
      });
}

// The products of a plan. The ring does not drain from one part of a product to the next, within a
// table of parts.
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Epilogue kEpilogue>
struct PlannedProducts {
  static constexpr int kPerSm = 2;
  // Two, where there is room: then one barrier for each part suffices.
  static constexpr int kKeptSums = kRowTiles * kTokenTiles <= 2 ? 2 : 1;
  using Sums = WarpSums<kRowTiles, kTokenTiles>;
  static constexpr int kRingSteps =
      RingSteps<W, kRowTiles, kTokenTiles>(StreamingExpertBytes(16 * kRowTiles) -
                                           kSegments * kKeptSums * static_cast<int>(sizeof(Sums)));
  static_assert(kRingSteps >= 2, "a step is on its way while another is multiplied");
  using Ring = StepRing<W, kRowTiles, kTokenTiles, kRingSteps, kWhole, kEpilogue>;
  static constexpr int kOutputs = kOutputsOf<kRowTiles, kEpilogue>;
  // Of a warp.
  struct Memory {
    typename Ring::Memory ring;
    Sums sums[kKeptSums];
  };
};
constexpr int kTableParts = 32;

// The blocks take the `parts` of every item in turn.
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Epilogue kEpilogue>
__global__ void __launch_bounds__(
    kThreads, PlannedProducts<T, W, kRowTiles, kTokenTiles, kWhole, kEpilogue>::kPerSm)
    StreamingExpertsKernel(const __grid_constant__ ExpertProduct product, int parts) {
  using Product = PlannedProducts<T, W, kRowTiles, kTokenTiles, kWhole, kEpilogue>;
  extern __shared__ uint4 shared[];
  __shared__ LinearArgs table[kTableParts];  // of this block's next parts
  __shared__ int first_rows[kTableParts];
  static_assert(StreamingExpertBytes(32) + sizeof(table) + sizeof(first_rows) <= 99 << 10);
  auto* const memory = reinterpret_cast<typename Product::Memory*>(shared);  // of each warp

  const LanePlace<W> at(product.args);
  typename Product::Ring ring(memory[at.warp].ring, at.lane);
  using Activations = typename Product::Ring::Activations;
  BeginKernel();
  const int stride = static_cast<int>(gridDim.x);
  const int all = *product.num_items * parts;
  for (int base = static_cast<int>(blockIdx.x); base < all; base += stride * kTableParts) {
    const int count = min((all - base + stride - 1) / stride, kTableParts);
    __syncthreads();  // every warp has finished the previous table
    if (at.thread < count) {
      const int part = base + at.thread * stride;
      MakeItemArgs<T, W>(product, part / parts, table[at.thread]);
      first_rows[at.thread] = part % parts * Product::kOutputs;
    }
    __syncthreads();

    // Where the tokens of a part are in x, looked up while the part before is copied.
    int rows[Activations::kCopied];
    const auto find_rows = [&](int part) {
      const LinearArgs& args = table[part];
#pragma unroll
      for (int i = 0; i < Activations::kCopied; ++i) {
        const int token = min(Activations::CopiedToken(at.lane, i), args.tokens - 1);
        rows[i] = args.sources == nullptr ? token : args.sources[token];
      }
    };
    find_rows(0);
    int to_copy = 0, steps_left = 0;  // the part whose steps are copied next
    const auto more = [&] {
      if (steps_left == 0) {
        if (to_copy == count || at.num_steps == 0) return false;
        const LinearArgs& args = table[to_copy];
        ring.weights.Aim(args, first_rows[to_copy], at.begin);
        ring.activations.Aim(args, at.begin, [&](int i) {
          return static_cast<const uint16_t*>(args.x) + static_cast<int64_t>(rows[i]) * args.cols;
        });
        if (++to_copy < count) find_rows(to_copy);
        steps_left = at.num_steps;
      }
      --steps_left;
      return true;
    };
    ring.CopyFirst(more);
    for (int part = 0; part < count; ++part) {
      const LinearArgs& args = table[part];
      const BlockResults<T, W, kRowTiles, kTokenTiles, kEpilogue> results(args, first_rows[part],
                                                                          at.thread);
      float sums[kRowTiles][kTokenTiles][4] = {};
      ring.template AddProducts<T>(at.num_steps, more, sums);
      const int kept = part % Product::kKeptSums;
      if (Product::kKeptSums == 1 && part > 0)
        __syncthreads();  // the previous part's have been taken
      KeepSums<kRowTiles, kTokenTiles>(at.lane, sums, memory[at.warp].sums[kept]);
      __syncthreads();
      results.TakeAll(
          args, at.thread, [&](int segment) -> const auto& { return memory[segment].sums[kept]; },
          [](int) { return 1.0f; },
          [&](int, int token, auto... values) { results.Store(args, token, values...); });
    }
  }
}

template <typename T, typename W, int kRowTiles, int kTokenTiles, int kPerSm, bool kWhole,
          Epilogue kEpilogue>
void Launch(const Context& context, const LinearArgs& args, const EpilogueJob<kEpilogue>& job) {
  const auto kernel = StreamingKernel<T, W, kRowTiles, kTokenTiles, kPerSm, kWhole, kEpilogue>;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(args.rows, kOutputsOf<kRowTiles, kEpilogue>)));
  using Product = OneProduct<T, W, kRowTiles, kTokenTiles, kPerSm, kWhole, kEpilogue>;
  TakeSharedMemory(kernel, Product::kBytes, "the shared memory of a product");
  LaunchEarly(context, "a product with few tokens", kernel, blocks, kThreads, Product::kBytes, args,
              job);
}

template <typename T, typename W, Epilogue kEpilogue>
void LaunchWhole(const Context& context, const LinearArgs& args,
                 const EpilogueJob<kEpilogue>& job) {
  const StreamingProduct product{.rows = int64_t{args.rows} * (kInPairs<kEpilogue> ? 2 : 1),
                                 .cols = args.cols,
                                 .tokens = args.tokens,
                                 .num_sms = context.num_sms,
                                 .shared_bytes = context.shared_bytes};
  const auto launch = [&]<int kRowTiles, int kPerSm>() {
    args.tokens <= 8 ? Launch<T, W, kRowTiles, 1, kPerSm, true, kEpilogue>(context, args, job)
                     : Launch<T, W, kRowTiles, 2, kPerSm, true, kEpilogue>(context, args, job);
  };
  StreamingBlocks blocks;
  if constexpr (kIsInt4<W>) {
    constexpr Int4Limits kLimits{.pairs = kInPairs<kEpilogue>, .short_groups = kUnitScales<W> == 2};
    blocks = Int4StreamingBlocks(product, kLimits);
  } else {
    blocks = RowwiseStreamingBlocks(product);
  }
  const auto are = [&](int rows, int per_sm) { return blocks == StreamingBlocks{rows, per_sm}; };
  if (are(32, 1)) return launch.template operator()<2, 1>();
  if (are(32, 2)) return launch.template operator()<2, 2>();
  if constexpr (!kIsInt4<W>) {
    if (are(16, 1)) return launch.template operator()<1, 1>();
    if (are(16, 2)) return launch.template operator()<1, 2>();
    if (are(80, 1)) return launch.template operator()<5, 1>();
  } else if constexpr (kUnitScales<W> == 1) {
    if (are(64, 1)) return Launch<T, W, 4, 2, 1, true, kEpilogue>(context, args, job);
    if (are(64, 2)) return launch.template operator()<4, 2>();
    if constexpr (!kInPairs<kEpilogue>) {
      if (are(16, 1)) return launch.template operator()<1, 1>();
    }
  }
  TANDEM_CHECK(false, "a product has no kernel for its blocks");
}

template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Epilogue kEpilogue>
void LaunchExperts(const Context& context, const ExpertProduct& product) {
  const auto kernel = StreamingExpertsKernel<T, W, kRowTiles, kTokenTiles, kWhole, kEpilogue>;
  const int64_t parts = CeilDiv(product.args.rows, kOutputsOf<kRowTiles, kEpilogue>);
  using Product = PlannedProducts<T, W, kRowTiles, kTokenTiles, kWhole, kEpilogue>;
  constexpr int kBytes = kSegments * static_cast<int>(sizeof(typename Product::Memory));
  constexpr int kPerSm = Product::kPerSm;
  TakeSharedMemory(kernel, kBytes, "the shared memory of products of experts");
  LaunchEarly(context, "products of experts with few tokens", kernel,
              BlocksOfUnits(context, kPerSm, product.most_items * parts), kThreads, kBytes, product,
              static_cast<int>(parts));
}

template <typename T, typename W, Epilogue kEpilogue>
void LaunchWholeExperts(const Context& context, const ExpertProduct& product) {
  if (product.tile > 8) return LaunchExperts<T, W, 2, 2, true, kEpilogue>(context, product);
  if constexpr (kUnitScales<W> < 2) {
    const StreamingExperts experts{
        .rows = int64_t{product.args.rows} * (kInPairs<kEpilogue> ? 2 : 1),
        .segment = product.args.segment,
        .most_items = product.most_items,
        .num_sms = context.num_sms,
        .shared_bytes = context.shared_bytes};
    if (StreamingExpertRows(experts, kIsInt4<W>) == 64) {
      return LaunchExperts<T, W, 4, 1, true, kEpilogue>(context, product);
    }
  }
  LaunchExperts<T, W, 2, 1, true, kEpilogue>(context, product);
}

}  // namespace

template <typename T, typename W>
void LaunchQuantizedExperts(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  HasWholeUnits(product.args)
      ? LaunchWholeExperts<T, W, Epilogue::kPlain>(context, product)
      : LaunchExperts<T, W, 1, 2, false, Epilogue::kPlain>(context, product);
}

template <typename T, typename W>
void LaunchQuantizedExpertsGated(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens && HasWholeUnits(product.args) &&
                   (!kIsInt4<W> || product.args.rows % 16 == 0),
               "the streaming kernel does not take this");
  LaunchWholeExperts<T, W, Epilogue::kGated>(context, product);
}

template <typename T, typename W>
void LaunchStreaming(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  if (HasWholeUnits(args)) return LaunchWhole<T, W, Epilogue::kPlain>(context, args, {});
  args.tokens <= 8 ? Launch<T, W, 2, 1, 2, false, Epilogue::kPlain>(context, args, {})
                   : Launch<T, W, 2, 2, 2, false, Epilogue::kPlain>(context, args, {});
}

template <typename T, typename W>
void LaunchStreamingGated(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   (!kIsInt4<W> || args.rows % 16 == 0),
               "the streaming kernel does not take this");
  LaunchWhole<T, W, Epilogue::kGated>(context, args, {});
}

template <typename T, typename W>
void LaunchStreamingTurned(const Context& context, const LinearArgs& args, const RopeJob& job) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   args.half_head % kHalfHeadMultiple<W> == 0,
               "the streaming kernel does not take this");
  LaunchWhole<T, W, Epilogue::kTurned>(context, args, job);
}

template <typename T, typename W>
void LaunchStreamingAdded(const Context& context, const LinearArgs& args, const AddJob& job) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   args.rows % kAddedRowsMultiple == 0,
               "the streaming kernel does not take this");
  LaunchWhole<T, W, Epilogue::kAdded>(context, args, job);
}

#define TANDEM_STREAMING(T, W)                                                 \
  template void LaunchStreaming<T, W>(const Context&, const LinearArgs&);      \
  template void LaunchStreamingGated<T, W>(const Context&, const LinearArgs&); \
  template void LaunchStreamingTurned<T, W>(const Context&, const LinearArgs&, const RopeJob&)
#define TANDEM_STREAMING_EXPERTS(T, W)                                              \
  template void LaunchQuantizedExperts<T, W>(const Context&, const ExpertProduct&); \
  template void LaunchQuantizedExpertsGated<T, W>(const Context&, const ExpertProduct&)
#define TANDEM_STREAMING_QUANTIZED(W) \
  TANDEM_STREAMING(Bf16, W);          \
  TANDEM_STREAMING(Fp16, W);          \
  TANDEM_STREAMING_EXPERTS(Bf16, W);  \
  TANDEM_STREAMING_EXPERTS(Fp16, W);  \
  template void LaunchStreamingAdded<Bf16, W>(const Context&, const LinearArgs&, const AddJob&)
TANDEM_STREAMING(Bf16, Bf16);
TANDEM_STREAMING(Fp16, Fp16);
template void LaunchStreamingAdded<Bf16, Bf16>(const Context&, const LinearArgs&, const AddJob&);
TANDEM_STREAMING_QUANTIZED(Fp8);
TANDEM_STREAMING_QUANTIZED(Int8);
TANDEM_STREAMING_QUANTIZED(Int4<1>);
TANDEM_STREAMING_QUANTIZED(Int4<2>);
#undef TANDEM_STREAMING_QUANTIZED
#undef TANDEM_STREAMING_EXPERTS
#undef TANDEM_STREAMING

}  // namespace tandem::ops::cuda
