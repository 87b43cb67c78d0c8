// Products with few tokens and weights of 8 or 4 bits. Their time is the time to read the weights:
// a block takes 16 to 64 rows, each of its warps one segment of their columns, and several steps of
// weights are on the way to shared memory at any time. Every lane copies exactly the pieces that it
// multiplies itself, so that no barrier is needed. The activations come through the L1 cache. How
// weights lie in memory and are widened is the policy WarpWeights (streaming_weights.cuh).
//
// Several blocks fit on an SM (streaming_rows.h). Where a product has fewer, blocks of the next one
// start beside them, and their first weights are there when the activations are.

#include "ops/cuda/dependent_launch.cuh"
#include "ops/cuda/linear_kernels.cuh"
#include "ops/cuda/product_results.cuh"
#include "ops/cuda/streaming_rows.h"
#include "ops/cuda/streaming_weights.cuh"
#include "ops/cuda/swiglu.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 32 * kSegments;

// A warp's sums for the rows of a block. The pitch keeps the lanes' stores in different banks.
template <int kRowTiles, int kTokenTiles>
using WarpSums = float[8 * kTokenTiles][16 * kRowTiles + 4];

// A lane's activations: one row of each tile of tokens, from the next of `num_steps` steps to load
// on. Plain loads: the previous kernel may still have been writing when this one began.
template <typename W, int kTokenTiles, bool kWhole>
class LaneActivations {
 public:
  struct Step {
    uint32_t words[kTokenTiles][kLaneWords<W>];
  };

  // row_of(tile): the lane's row of x.
  template <typename RowOf>
  __device__ void Aim(int cols, int lane, int begin, int num_steps, const RowOf& row_of) {
    cols_ = cols;
    col_ = begin + PieceCol<W>(lane % 4, 0);
    last_col_ = col_ + (num_steps - 1) * kStepCols<W>;
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; ++tile) rows_[tile] = row_of(tile);
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

// Two steps of activations ahead, because one is multiplied faster than L2 answers; one where
// registers are short.
template <int kRowTiles, int kTokenTiles>
constexpr int kStepsAhead = kTokenTiles == 1 || kRowTiles == 2 ? 2 : 1;

// Adds the products of kSteps steps from `step` on, whose activations lie in `ahead` from `place`
// on.
template <typename T, typename W, int kSteps, int kRowTiles, int kTokenTiles, typename Weights,
          typename Activations, int kAhead, typename More>
__device__ __forceinline__ void AddSteps(int step, int place, Weights& weights,
                                         Activations& activations,
                                         typename Activations::Step (&ahead)[kAhead],
                                         const More& more,
                                         float (&sums)[kRowTiles][kTokenTiles][4]) {
  // Activations that are not converted stay where they were loaded until they have been multiplied.
  constexpr bool kLoadsLate = kIsInt4<W>;
  typename Activations::Step x[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    x[i] = ahead[place + i];
#pragma unroll
    for (auto& words : x[i].words) ConvertActivations<T, W>(words);
    if constexpr (!kLoadsLate) activations.LoadNext(ahead[place + i]);
  }
  weights.template Wait<kSteps>();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) weights.template Multiply<T>(i, x[i].words, sums);
  if constexpr (kLoadsLate) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) activations.LoadNext(ahead[place + i]);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) weights.Next(more(step + i));
}

// A warp's sums: its steps of weights times activations, whose first steps are in `ahead`. more():
// whether there is another step to copy, after it has been aimed at.
template <typename T, typename W, int kRowTiles, int kTokenTiles, typename Weights,
          typename Activations, int kAhead, typename More>
__device__ __forceinline__ void SumSteps(int num_steps, Weights& weights, Activations& activations,
                                         typename Activations::Step (&ahead)[kAhead],
                                         const More& more,
                                         float (&sums)[kRowTiles][kTokenTiles][4]) {
  // The products of a unit of 4 bits are a chain of their own: those of two hide each other's
  // latency, where registers allow it.
  constexpr int kAtOnce = kIsInt4<W> && kTokenTiles == 1 ? 2 : 1;
  static_assert(kAhead % kAtOnce == 0);
  // A loop without a test for every step is up to 6 % faster; where registers are short, 10 %
  // slower.
  constexpr int kTested = kTokenTiles == 1 ? kAhead - 1 : 0;
  int first = 0;
#pragma unroll 1
  for (; first + kTested < num_steps; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; i += kAtOnce) {
      if (kTested == 0 && first + i >= num_steps) break;
      AddSteps<T, W, kAtOnce>(first + i, i, weights, activations, ahead, more, sums);
    }
  }
#pragma unroll
  for (int i = 0; i < kTested; ++i) {
    if (first + i < num_steps) {
      AddSteps<T, W, 1>(first + i, i, weights, activations, ahead, more, sums);
    }
  }
}

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

// The results of a block's rows: a thread stores those of one output and kTokens tokens.
template <typename T, typename W, int kRowTiles, int kTokenTiles, Results kResults>
class BlockResults {
 public:
  static constexpr int kOutputs = (kInPairs<kResults> ? 8 : 16) * kRowTiles;
  static constexpr int kTokens = static_cast<int>(CeilDiv(8 * kTokenTiles * kOutputs, kThreads));

  __device__ BlockResults(const LinearArgs& args, int first_output, int thread)
      : output_(first_output + thread % kOutputs),
        result_(args, RowOf(args)),
        other_(args, RowOf(args) + (kInPairs<kResults> ? RowsToOther<kResults>(args) : 0)) {}

  // take(i, token): of the thread's i-th token, if there is one.
  template <typename Take>
  __device__ void ForTokens(const LinearArgs& args, int thread, const Take& take) const {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int token = thread / kOutputs + i * (kThreads / kOutputs);
      if (output_ < args.rows && token < args.tokens) take(i, token);
    }
  }
  // take(i, token, result): of the thread's i-th token, or with both results of a pair, rounded.
  // sums_of(segment): of its warp. factor_of(i): TokenFactor.
  template <typename SumsOf, typename FactorOf, typename Take>
  __device__ void TakeAll(const LinearArgs& args, int thread, const SumsOf& sums_of,
                          const FactorOf& factor_of, const Take& take) const {
    ForTokens(args, thread, [&](int i, int token) {
      const int at = thread % kOutputs;
      const float factor = factor_of(i);
      const auto sum_at = [&](int place) {
        return factor * AddSegments([&](int segment) { return sums_of(segment)[token][place]; });
      };
      if constexpr (kInPairs<kResults>) {
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
    cuda::Store<T>(args, token, output_, SwiGluOf(gate, up));
  }
  __device__ int output() const { return output_; }

 private:
  __device__ int RowOf(const LinearArgs& args) const {
    return RowOfOutput<kResults>(args, min(output_, args.rows - 1));
  }

  int output_;
  RowResult<T, W> result_;
  RowResult<T, W> other_;
};

// kRowTiles * 16 weight rows per block, kTokenTiles * 8 tokens. kWhole: HasWholeUnits(args).
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Results kResults>
struct OneProduct {
  using Weights = WarpWeights<W, kRowTiles, kDeepRing<W, kRowTiles>, kWhole, kResults>;
  using Block = BlockResults<T, W, kRowTiles, kTokenTiles, kResults>;
  static constexpr int kOutputs = Block::kOutputs;
  // Of a warp: first its ring of steps, then its sums.
  union Memory {
    typename Weights::Ring ring;
    WarpSums<kRowTiles, kTokenTiles> sums;
  };
  static constexpr int kBytes = kSegments * static_cast<int>(sizeof(Memory));
};

template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Results kResults>
__global__ void __launch_bounds__(
    kThreads, OneProduct<T, W, kRowTiles, kTokenTiles, kWhole, kResults>::Weights::kBlocksPerSm)
    StreamingKernel(const __grid_constant__ LinearArgs args,
                    [[maybe_unused]] const __grid_constant__ ResultsJob<kResults> job) {
  using Product = OneProduct<T, W, kRowTiles, kTokenTiles, kWhole, kResults>;
  extern __shared__ uint4 shared[];
  auto* const memory = reinterpret_cast<typename Product::Memory*>(shared);  // of each warp

  const LanePlace<W> at(args);
  const int first_output = static_cast<int>(blockIdx.x) * Product::kOutputs;
  typename Product::Weights weights(memory[at.warp].ring, at.lane);
  weights.Aim(args, first_output, at.begin);
  weights.Begin([&](int step) { return step < at.num_steps; });
  const typename Product::Block results(args, first_output, at.thread);
  // Everything else waits for the previous kernel.
  BeginKernel();

  using Output = ResultsOutput<T, kResults, Product::kOutputs>;
  constexpr int kTokens = Product::Block::kTokens;
  const auto for_outputs = [&]([[maybe_unused]] const auto& take) {
    if constexpr (kHasOutput<kResults>) {
      const Output output(job, args, results.output());
      results.ForTokens(args, at.thread, [&](int i, int token) { take(output, i, token); });
    }
  };
  [[maybe_unused]] typename Output::Asked asked[kTokens];
  for_outputs([&](const auto& output, int i, int token) { asked[i] = output.Ask(token); });
  // With more tokens registers are short, and other blocks hide that the loads come last.
  constexpr bool kLoadsSquaresFirst = kTokenTiles == 1;
  int64_t squares[kTokens] = {};
  const auto load_squares = [&] {
    if (args.squares == nullptr) return;
    results.ForTokens(args, at.thread, [&](int i, int token) { squares[i] = args.squares[token]; });
  };
  if constexpr (kLoadsSquaresFirst) load_squares();

  using Activations = LaneActivations<W, kTokenTiles, kWhole>;
  Activations activations;
  // Tokens past the last are read as the last and never stored.
  activations.Aim(args.cols, at.lane, at.begin, at.num_steps, [&](int tile) {
    return TokenRow<false>(args, min(8 * tile + at.lane / 4, args.tokens - 1));
  });
  typename Activations::Step ahead[kStepsAhead<kRowTiles, kTokenTiles>];
  if (at.num_steps > 0) {
#pragma unroll
    for (auto& step : ahead) activations.LoadNext(step);
  }
  [[maybe_unused]] typename Output::Early early[kTokens];
  for_outputs(
      [&](const auto& output, int i, int token) { early[i] = output.Prepare(asked[i], token); });
  float sums[kRowTiles][kTokenTiles][4] = {};
  constexpr int kRingSteps = kDeepRing<W, kRowTiles>;
  SumSteps<T, W>(
      at.num_steps, weights, activations, ahead,
      [&](int step) { return step + kRingSteps < at.num_steps; }, sums);
  if constexpr (!kLoadsSquaresFirst) load_squares();

  __syncwarp();
  KeepSums<kRowTiles, kTokenTiles>(at.lane, sums, memory[at.warp].sums);
  __syncthreads();
  results.TakeAll(
      args, at.thread, [&](int segment) -> const auto& { return memory[segment].sums; },
      [&](int i) { return TokenFactor(args, squares[i]); },
      [&](int i, int token, auto... values) {
        if constexpr (kHasOutput<kResults>) {
          Output(job, args, results.output()).Store(early[i], token, values...);
        } else {
          results.Store(args, token, values...);
        }
      });
}

// The products of a plan. Weights flow through the ring without a pause from one part of a product
// to the next.
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Results kResults>
struct PlannedProducts {
  static constexpr int kRingSteps = kDeepRing<W, kRowTiles> * 2 / 3;
  using Weights = WarpWeights<W, kRowTiles, kRingSteps, kWhole, kResults>;
  static constexpr int kOutputs = (kInPairs<kResults> ? 8 : 16) * kRowTiles;
  // Of a warp. The sums of two parts take turns, so that a barrier for each part suffices.
  struct Memory {
    typename Weights::Ring ring;
    WarpSums<kRowTiles, kTokenTiles> sums[2];
  };
};
constexpr int kTableParts = 32;

// The blocks take the `parts` of every item in turn.
template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Results kResults>
__global__ void __launch_bounds__(
    kThreads,
    PlannedProducts<T, W, kRowTiles, kTokenTiles, kWhole, kResults>::Weights::kBlocksPerSm)
    StreamingExpertsKernel(const __grid_constant__ ExpertProduct product, int parts) {
  using Product = PlannedProducts<T, W, kRowTiles, kTokenTiles, kWhole, kResults>;
  extern __shared__ uint4 shared[];
  __shared__ LinearArgs table[kTableParts];  // of this block's next parts
  __shared__ int first_rows[kTableParts];
  auto* const memory = reinterpret_cast<typename Product::Memory*>(shared);  // of each warp

  const LanePlace<W> at(product.args);
  typename Product::Weights weights(memory[at.warp].ring, at.lane);
  using Activations = LaneActivations<W, kTokenTiles, kWhole>;
  Activations activations;
  typename Activations::Step ahead[kStepsAhead<kRowTiles, kTokenTiles>];
  const auto token_of = [&](int tile, int tokens) {
    return min(8 * tile + at.lane / 4, tokens - 1);
  };
  BeginKernel();
  const int stride = static_cast<int>(gridDim.x);
  const int all = *product.num_items * parts;
  for (int base = static_cast<int>(blockIdx.x); base < all; base += stride * kTableParts) {
    const int count = min((all - base + stride - 1) / stride, kTableParts);
    __syncthreads();  // all have left the last table
    if (at.thread < count) {
      const int part = base + at.thread * stride;
      MakeItemArgs<T, W>(product, part / parts, table[at.thread]);
      first_rows[at.thread] = part % parts * Product::kOutputs;
    }
    __syncthreads();

    int to_copy = 0, steps_left = 0;  // the part whose steps are copied next
    const auto more = [&](int) {
      if (steps_left == 0) {
        if (to_copy == count || at.num_steps == 0) return false;
        weights.Aim(table[to_copy], first_rows[to_copy], at.begin);
        ++to_copy;
        steps_left = at.num_steps;
      }
      --steps_left;
      return true;
    };
    weights.Begin(more);
    const auto aim = [&](int part, const int(&rows)[kTokenTiles]) {
      const LinearArgs& args = table[part];
      activations.Aim(args.cols, at.lane, at.begin, at.num_steps, [&](int tile) {
        return static_cast<const uint16_t*>(args.x) + static_cast<int64_t>(rows[tile]) * args.cols;
      });
      if (at.num_steps == 0) return;
#pragma unroll
      for (auto& step : ahead) activations.LoadNext(step);
    };
    const auto find_rows = [&](int part, int(&rows)[kTokenTiles]) {
      const LinearArgs& args = table[part];
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
        const int token = token_of(tile, args.tokens);
        rows[tile] = args.sources == nullptr ? token : args.sources[token];
      }
    };
    int rows[kTokenTiles];
    find_rows(0, rows);
    aim(0, rows);
    for (int part = 0; part < count; ++part) {
      const LinearArgs& args = table[part];
      const bool is_last = part + 1 == count;
      if (!is_last) find_rows(part + 1, rows);
      const BlockResults<T, W, kRowTiles, kTokenTiles, kResults> results(args, first_rows[part],
                                                                         at.thread);
      float sums[kRowTiles][kTokenTiles][4] = {};
      SumSteps<T, W>(at.num_steps, weights, activations, ahead, more, sums);
      if (!is_last) aim(part + 1, rows);
      KeepSums<kRowTiles, kTokenTiles>(at.lane, sums, memory[at.warp].sums[part % 2]);
      __syncthreads();
      results.TakeAll(
          args, at.thread,
          [&](int segment) -> const auto& { return memory[segment].sums[part % 2]; },
          [](int) { return 1.0f; },
          [&](int, int token, auto... values) { results.Store(args, token, values...); });
    }
  }
}

template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Results kResults>
void Launch(const Context& context, const LinearArgs& args, const ResultsJob<kResults>& job) {
  const auto kernel = StreamingKernel<T, W, kRowTiles, kTokenTiles, kWhole, kResults>;
  const dim3 blocks(
      static_cast<unsigned>(CeilDiv(args.rows, (kInPairs<kResults> ? 8 : 16) * kRowTiles)));
  using Product = OneProduct<T, W, kRowTiles, kTokenTiles, kWhole, kResults>;
  TakeSharedMemory(kernel, Product::kBytes, "the shared memory of a product");
  LaunchEarly(context, "a product with few tokens", kernel, blocks, kThreads, Product::kBytes, args,
              job);
}

template <typename T, typename W, Results kResults>
void LaunchWhole(const Context& context, const LinearArgs& args, const ResultsJob<kResults>& job) {
  const StreamingProduct product{.rows = int64_t{args.rows} * (kInPairs<kResults> ? 2 : 1),
                                 .tokens = args.tokens,
                                 .num_sms = context.num_sms};
  const auto launch = [&]<int kRowTiles>() {
    args.tokens <= 8 ? Launch<T, W, kRowTiles, 1, true, kResults>(context, args, job)
                     : Launch<T, W, kRowTiles, 2, true, kResults>(context, args, job);
  };
  const int rows = kIsInt4<W> ? StreamingInt4Rows(product) : StreamingRows(product);
  // Blocks of one size suffice for groups of 32, which are rare; both rows of a pair are tiles of
  // their own.
  if constexpr (kUnitScales<W> < 2) {
    if (rows == 64) return launch.template operator()<4>();
    if constexpr (!(kInPairs<kResults> && kIsInt4<W>)) {
      if (rows == 16) return launch.template operator()<1>();
    }
  }
  launch.template operator()<2>();
}

template <typename T, typename W, int kRowTiles, int kTokenTiles, bool kWhole, Results kResults>
void LaunchExperts(const Context& context, const ExpertProduct& product) {
  const auto kernel = StreamingExpertsKernel<T, W, kRowTiles, kTokenTiles, kWhole, kResults>;
  const int64_t parts = CeilDiv(product.args.rows, (kInPairs<kResults> ? 8 : 16) * kRowTiles);
  using Product = PlannedProducts<T, W, kRowTiles, kTokenTiles, kWhole, kResults>;
  constexpr int kBytes = kSegments * static_cast<int>(sizeof(typename Product::Memory));
  constexpr int kPerSm = Product::Weights::kBlocksPerSm;
  TakeSharedMemory(kernel, kBytes, "the shared memory of products of experts");
  LaunchEarly(context, "products of experts with few tokens", kernel,
              BlocksOfUnits(context, kPerSm, product.most_items * parts), kThreads, kBytes, product,
              static_cast<int>(parts));
}

template <typename T, typename W, Results kResults>
void LaunchWholeExperts(const Context& context, const ExpertProduct& product) {
  if (product.tile > 8) return LaunchExperts<T, W, 2, 2, true, kResults>(context, product);
  if constexpr (kUnitScales<W> < 2) {
    const StreamingExperts experts{
        .rows = int64_t{product.args.rows} * (kInPairs<kResults> ? 2 : 1),
        .segment = product.args.segment,
        .most_items = product.most_items,
        .num_sms = context.num_sms};
    if (StreamingExpertRows(experts, kIsInt4<W>) == 64) {
      return LaunchExperts<T, W, 4, 1, true, kResults>(context, product);
    }
  }
  LaunchExperts<T, W, 2, 1, true, kResults>(context, product);
}

}  // namespace

template <typename T, typename W>
void LaunchStreamingQuantizedExperts(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  HasWholeUnits(product.args) ? LaunchWholeExperts<T, W, Results::kPlain>(context, product)
                              : LaunchExperts<T, W, 1, 2, false, Results::kPlain>(context, product);
}

template <typename T, typename W>
void LaunchStreamingQuantizedExpertsGated(const Context& context, const ExpertProduct& product) {
  TANDEM_CHECK(product.tile <= kMaxStreamingTokens && HasWholeUnits(product.args) &&
                   (!kIsInt4<W> || product.args.rows % 16 == 0),
               "the streaming kernel does not take this");
  LaunchWholeExperts<T, W, Results::kGated>(context, product);
}

template <typename T, typename W>
void LaunchStreamingQuantized(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens, "too many tokens for the streaming kernel");
  HasWholeUnits(args) ? LaunchWhole<T, W, Results::kPlain>(context, args, {})
                      : Launch<T, W, 1, 2, false, Results::kPlain>(context, args, {});
}

template <typename T, typename W>
void LaunchStreamingQuantizedGated(const Context& context, const LinearArgs& args) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   (!kIsInt4<W> || args.rows % 16 == 0),
               "the streaming kernel does not take this");
  LaunchWhole<T, W, Results::kGated>(context, args, {});
}

template <typename T, typename W>
void LaunchStreamingQuantizedTurned(const Context& context, const LinearArgs& args,
                                    const RopeJob& job) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   args.half_head % kHalfHeadMultiple<W> == 0,
               "the streaming kernel does not take this");
  LaunchWhole<T, W, Results::kTurned>(context, args, job);
}

template <typename T, typename W>
void LaunchStreamingQuantizedAdded(const Context& context, const LinearArgs& args,
                                   const AddJob& job) {
  TANDEM_CHECK(args.tokens <= kMaxStreamingTokens && HasWholeUnits(args) &&
                   args.rows % kAddedRowsMultiple == 0,
               "the streaming kernel does not take this");
  LaunchWhole<T, W, Results::kAdded>(context, args, job);
}

#define TANDEM_STREAMING(T, W)                                                               \
  template void LaunchStreamingQuantized<T, W>(const Context&, const LinearArgs&);           \
  template void LaunchStreamingQuantizedGated<T, W>(const Context&, const LinearArgs&);      \
  template void LaunchStreamingQuantizedTurned<T, W>(const Context&, const LinearArgs&,      \
                                                     const RopeJob&);                        \
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
template void LaunchStreamingQuantizedAdded<Bf16, Fp8>(const Context&, const LinearArgs&,
                                                       const AddJob&);
template void LaunchStreamingQuantizedAdded<Bf16, Int8>(const Context&, const LinearArgs&,
                                                        const AddJob&);
template void LaunchStreamingQuantizedAdded<Bf16, Int4<1>>(const Context&, const LinearArgs&,
                                                           const AddJob&);
template void LaunchStreamingQuantizedAdded<Bf16, Int4<2>>(const Context&, const LinearArgs&,
                                                           const AddJob&);

}  // namespace tandem::ops::cuda
