// Products with many tokens on sm_90: the matrix instructions of a warpgroup take the weights from
// registers and the tokens from shared memory. Sums have the same bits as in the other kernels: the
// bits depend on the set of columns that one instruction adds, and the tokens are laid out so that
// these sets are the same.
//
// A block has kGroups warpgroups, each with 64 weight rows. All of them share each unit of tokens,
// but not weights: a lane copies the pieces that it multiplies itself.
//
// If that makes too few blocks to fill the GPU, two or four of them form a cluster, divide the
// columns and read each other's sums at the end.
#include <cooperative_groups.h>

#include "ops/cuda/device/async_copy.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/linear/linear_kernels.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kTokenBytes = kUnitCols * 2;  // of a token in a unit
constexpr int kTokenPieces = kTokenBytes / kPieceBytes;
constexpr int kMaxStages = 8;

// The tokens in the order in which the matrix instructions read them: for each tile of kTokens and
// each unit of columns, a block of rows of 128 bytes, with pieces of 16 bytes swizzled as described
// at DescribeTile. Piece 2 i + half of a row holds the values that the lanes 4 g + (0 .. 3) of
// another kernel pass as words 2 i + half of their activations. A thread takes half a unit of a
// token; zeros after the last token and column.
template <typename T, typename W, bool kAligned>
__global__ void ArrangeTokensKernel(const LinearArgs args, int tile_tokens, int units, int count,
                                    uint4* out) {
  BeginKernel();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const int half = i % 2;
  const int unit = i / 2 % units;
  const int token = i / 2 / units;
  const auto* const row =
      static_cast<const uint16_t*>(args.x) + static_cast<int64_t>(token) * args.cols;
  uint32_t words[4][4];  // of the four lanes
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    // A lane's columns of a step: 8 for weights of 16 bits, with two steps per unit; else 16.
    const int col = unit * kUnitCols + (kIsByte<W> ? 16 * quad + 8 * half : 32 * half + 8 * quad);
    uint4 piece = make_uint4(0, 0, 0, 0);
    if (token < args.tokens && col < args.cols) {
      piece = kAligned ? *reinterpret_cast<const uint4*>(row + col)
                       : LoadUnaligned(row, col, args.cols);
    }
    words[quad][0] = piece.x;
    words[quad][1] = piece.y;
    words[quad][2] = piece.z;
    words[quad][3] = piece.w;
    ConvertActivations<T, W>(words[quad]);
  }
  const int in_tile = token % tile_tokens;
  uint4* const to =
      out + ((static_cast<int64_t>(token / tile_tokens) * units + unit) * tile_tokens + in_tile) *
                kTokenPieces;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    to[(4 * half + word) ^ (in_tile % 8)] =
        make_uint4(words[0][word], words[1][word], words[2][word], words[3][word]);
  }
}

// Warpgroups per block: with fewer tokens there are registers for more rows. Int4 has sums of a
// unit too, so its tiles have at most 64 tokens.
template <typename W, int kTokens>
constexpr int kGroups = kTokens == (kIsInt4<W> ? 64 : 128) ? 2 : 4;

// The number of segments for a block of a cluster, and of the sums that it keeps separate: the
// segments of one half share a sum.
template <int kCluster>
constexpr int kOwnSegments = kSegments / kCluster;
template <int kCluster>
constexpr int kParts = kCluster <= 2 ? 1 : kOwnSegments<kCluster>;

// The contents of a block's shared memory.
template <typename W, int kTokens, int kCluster>
struct Layout {
  static constexpr int kThreads = kGroups<W, kTokens> * kWarpgroupThreads;
  static constexpr int kRows = kGroups<W, kTokens> * kWarpgroupRows;
  static constexpr int kSums = kTokens / 2;  // of a lane
  static constexpr int kUnitBytes =
      kIsInt4<W> ? kUnitCols / 2 : kUnitCols * static_cast<int>(sizeof(W));
  static constexpr int kLanePieces = 2 * kUnitBytes / kStepBytes;  // of a unit
  static constexpr int kBlockBytes = kTokens * kTokenBytes;
  struct Stage {
    uint4 tokens[kBlockBytes / kPieceBytes];
    uint4 weights[kLanePieces][kThreads];  // each thread's own
  };
  // Keeps a lane's sums of the first half if a block has both halves.
  using FirstHalf = float[kCluster == 1 ? kSums : 1][kThreads];
  // A block has 227 KB; barriers take some of it.
  static constexpr int kFitting =
      static_cast<int>((225 * 1024 - sizeof(FirstHalf)) / sizeof(Stage));
  static constexpr int kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  // Sums to be stored: the pitch keeps the lanes' stores in different banks.
  static constexpr int kOutPitch = kRows + 4;

  Stage stages[kStages];
  FirstHalf first_half;
  uint64_t full[kStages];
  uint64_t empty[kStages];

  static_assert(sizeof(Stage) % 1024 == 0);
  static_assert(kParts<kCluster> * kTokens * kOutPitch * sizeof(float) <= sizeof(stages));
};
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The weights of a lane, from the next unit to copy on: its two rows.
template <typename W, typename L>
class LaneWeights {
 public:
  __device__ LaneWeights(const LinearArgs& args, int first_row, int thread, int unit) {
    const int pitch_bytes = args.pitch * (L::kUnitBytes / kUnitCols);
    const int row = first_row + thread / 32 * 16 + thread % 32 / 4;
    const int at = unit * L::kUnitBytes + thread % 4 * kPieceBytes;
    left_ = pitch_bytes - at;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows past the last are read as the last and never stored.
      next_[half] = static_cast<const char*>(args.weight) +
                    static_cast<int64_t>(min(row + 8 * half, args.rows - 1)) * pitch_bytes + at;
    }
  }
  __device__ void CopyNext(typename L::Stage& stage, int thread) {
#pragma unroll
    for (int step = 0; step < L::kLanePieces / 2; ++step) {
      const bool real = left_ > step * kStepBytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        CopyPiece(SharedAddress(&stage.weights[2 * step + half][thread]),
                  next_[half] + (real ? step * kStepBytes : 0), real);
      }
    }
    left_ -= L::kUnitBytes;
    next_[0] += L::kUnitBytes;
    next_[1] += L::kUnitBytes;
  }

 private:
  int left_;  // bytes of the rows
  const char* next_[2];
};

template <int kScales, typename L>
class LaneWeights<Int4<kScales>, L> {
 public:
  __device__ LaneWeights(const LinearArgs& args, int first_row, int thread, int unit)
      : next_(static_cast<const uint4*>(args.weight) +
              (static_cast<int64_t>(Int4Tile<Epilogue::kPlain>(args, first_row, thread / 32)) *
                   UnitsOf(args) +
               unit) *
                  32 +
              thread % 32) {}
  __device__ void CopyNext(typename L::Stage& stage, int thread) {
    CopyPiece(SharedAddress(&stage.weights[0][thread]), next_, true);
    next_ += 32;
  }

 private:
  const uint4* next_;
};

// A lane's weights of a unit, in registers.
template <typename T, typename W>
struct UnitWeights {
  static constexpr int kSteps = kUnitCols / kStepCols<W>;
  uint32_t low[kSteps][kLaneWords<W>];
  uint32_t high[kSteps][kLaneWords<W>];
  // Of Int4: those of the unit's groups, of the lane's two rows.
  float2 scales[kIsInt4<W> ? kUnitScales<W> : 1];

  // The weights of the unit `unit` of the row.
  template <typename Stage>
  __device__ void Load(const LinearArgs& args, const Stage& stage, int first_row, int unit) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kIsInt4<W>) {
      // After the last unit its factors again.
      const int64_t group =
          static_cast<int64_t>(Int4Tile<Epilogue::kPlain>(args, first_row, thread / 32)) *
              args.groups +
          (min(unit, UnitsOf(args) - 1) >> args.group_shift) * kUnitScales<W>;
      const int64_t at = group * 8 + thread % 32 / 4;
#pragma unroll
      for (int i = 0; i < kUnitScales<W>; ++i) scales[i] = __ldg(&args.group_scales[at + 8 * i]);
      UnpackTile<T, W>(
          stage.weights[0][thread],
          [&](int i) {
            return args.group_zeros == nullptr ? kMiddleZeros<T>
                                               : __ldg(&args.group_zeros[at + 8 * i]);
          },
          low[0], high[0]);
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        UnpackWeights<W>(stage.weights[2 * step][thread], low[step]);
        UnpackWeights<W>(stage.weights[2 * step + 1][thread], high[step]);
      }
    }
  }
  // Starts the unit's products; the sums restart from zero unless `add`.
  template <int kSums>
  __device__ void Multiply(const uint4* tokens, bool add, float (&sums)[kSums]) const {
    uint64_t tile = DescribeTile(tokens);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kLaneWords<W>; i += 2) {
        MultiplyNext(step, i, tile, add, sums);
        add = true;
      }
    }
    CommitProducts();
  }
  // The same of one of the unit's groups (Int4), from zero.
  template <int kSums>
  __device__ void MultiplyGroup(const uint4* tokens, int group, float (&sums)[kSums]) const {
    constexpr int kWords = kLaneWords<W> / (kIsInt4<W> ? kUnitScales<W> : 1);
    uint64_t tile =
        DescribeTile(tokens) + static_cast<uint64_t>(group * kWords / 2) * kNext16Columns;
    BeginProducts();
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      MultiplyNext(0, group * kWords + i, tile, i > 0, sums);
    }
    CommitProducts();
  }

 private:
  template <int kSums>
  __device__ void MultiplyNext(int step, int i, uint64_t& tile, bool add,
                               float (&sums)[kSums]) const {
    BeginProduct<Factor<T, W>, 2 * kSums>(sums, low[step][i], high[step][i], low[step][i + 1],
                                          high[step][i + 1], tile, add);
    tile += kNext16Columns;
  }
};

__device__ float4 Plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The results of rows row .. row + 3 of one token from their sums; rows past the last are left out.
template <typename T, typename W>
__device__ void StoreResults(const LinearArgs& args, int token, int row, const float4& sums) {
  const float values[4] = {sums.x, sums.y, sums.z, sums.w};
  T* const out = static_cast<T*>(args.out) + static_cast<int64_t>(token) * args.rows + row;
  if (args.rows % 4 != 0 || args.float_out ||
      reinterpret_cast<uintptr_t>(out) % sizeof(uint2) != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + i >= args.rows) break;
      Store<T>(args, token, row + i, RowResult<T, W>(args, row + i).Of(values[i]));
    }
  } else if (row < args.rows) {
    const auto result = [&](int i) { return RowResult<T, W>(args, row + i).Of(values[i]); };
    StoreFour(out, make_float4(result(0), result(1), result(2), result(3)));
  }
}

// A block's progress through its units of columns: the next stage, and the units copied in advance.
// Every thread of the block makes the same calls.
template <typename T, typename W, typename L>
class Pipeline {
 public:
  // `arranged`: the block's tokens, from the unit `begin` on.
  __device__ Pipeline(L& block, const LinearArgs& args, const uint4* arranged, int first_row,
                      int begin, int units)
      : block_(block),
        thread_(static_cast<int>(threadIdx.x)),
        units_(units),
        segment_units_(args.segment / kUnitCols),
        args_(args),
        first_row_(first_row),
        begin_(begin),
        arranged_(arranged),
        weights_(args, first_row, thread_, begin) {}

  // Only weights: the previous kernel may still be writing the tokens.
  __device__ void BeginWeights() {
#pragma unroll
    for (int unit = 0; unit < L::kStages; ++unit) {
      if (unit < units_) weights_.CopyNext(block_.stages[unit], thread_);
      CommitCopies();
    }
  }
  __device__ void BeginTokens() {
    if (thread_ == 0) {
      for (int stage = 0; stage < L::kStages; ++stage) {
        InitBarrier(&block_.full[stage], 1);
        InitBarrier(&block_.empty[stage], L::kThreads / 32);
      }
      PublishBarriers();
      SeeEarlierStores();
    }
    __syncthreads();
    for (int unit = 0; unit < min(L::kStages, units_); ++unit) CopyTokens(unit, unit);
  }
  __device__ bool HasMore() const { return unit_ < units_; }

  // The sums of the next segment; call only if HasMore().
  __device__ void RunSegment(float (&sums)[L::kSums]) {
    const int end = min(unit_ + segment_units_, units_);
    UnitWeights<T, W> even;
    UnitWeights<T, W> odd;
    WaitForCopies<L::kStages - 1>();
    Load(even, unit_);
    if constexpr (kIsInt4<W>) {
#pragma unroll
      for (float& sum : sums) sum = 0.0f;
      while (unit_ < end) {
        RunScaledUnit(even, odd, sums);
        if (unit_ < end) RunScaledUnit(odd, even, sums);
      }
    } else {
      for (bool add = false; unit_ < end; add = true) {
        RunUnit(even, odd, add, sums);
        if (unit_ < end) RunUnit(odd, even, true, sums);
      }
      WaitForProducts(sums);
    }
  }

 private:
  __device__ void Load(UnitWeights<T, W>& weights, int unit) const {
    weights.Load(args_, block_.stages[stage_], first_row_, begin_ + unit);
  }
  // Its products run while the weights of the next one are fetched.
  __device__ void RunUnit(const UnitWeights<T, W>& weights, UnitWeights<T, W>& next, bool add,
                          float (&sums)[L::kSums]) {
    WaitForPhase(&block_.full[stage_], parity_);
    weights.Multiply(block_.stages[stage_].tokens, add, sums);
    // The previous unit is done.
    WaitForEarlierProducts();
    Advance();
    Load(next, unit_);
  }
  // The same where the sums of each group are scaled before they are added.
  __device__ void RunScaledUnit(const UnitWeights<T, W>& weights, UnitWeights<T, W>& next,
                                float (&sums)[L::kSums]) {
    WaitForPhase(&block_.full[stage_], parity_);
    const uint4* const tokens = block_.stages[stage_].tokens;
    float parts[L::kSums];
    weights.MultiplyGroup(tokens, 0, parts);
    if constexpr (kUnitScales<W> == 2) {
      WaitForProducts(parts);
      AddScaled(sums, parts, weights.scales[0]);
      weights.MultiplyGroup(tokens, 1, parts);
    }
    Advance();
    Load(next, unit_);
    WaitForProducts(parts);
    AddScaled(sums, parts, weights.scales[kUnitScales<W> - 1]);
  }
  // To the next stage, with copies into those that are free; the unit before is done.
  __device__ void Advance() {
    const int before = stage_ == 0 ? L::kStages - 1 : stage_ - 1;
    if (unit_ > 0 && thread_ % 32 == 0) Arrive(&block_.empty[before]);
    if (unit_ + L::kStages < units_) weights_.CopyNext(block_.stages[stage_], thread_);
    CommitCopies();
    // All threads wait: with a branch for one of them the compiler would end the products first.
    if (unit_ > 0 && unit_ - 1 + L::kStages < units_) {
      WaitForPhase(&block_.empty[before], stage_ == 0 ? parity_ ^ 1 : parity_);
      CopyTokens(unit_ - 1 + L::kStages, before);
    }
    if (++stage_ == L::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
    ++unit_;
    WaitForCopies<L::kStages - 1>();
  }
  __device__ void CopyTokens(int unit, int stage) const {
    CopyBlock(thread_ == 0, block_.stages[stage].tokens,
              arranged_ + static_cast<int64_t>(unit) * (L::kBlockBytes / kPieceBytes),
              L::kBlockBytes, &block_.full[stage]);
  }

  L& block_;
  const int thread_;
  const int units_;
  const int segment_units_;
  const LinearArgs& args_;
  const int first_row_;
  const int begin_;
  const uint4* const arranged_;
  LaneWeights<W, L> weights_;
  int unit_ = 0;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

// Stores the sums of a block, or of a cluster: through shared memory, so that neighbouring threads
// store neighbouring elements.
template <typename T, typename W, int kTokens, int kCluster, typename L, int kNumParts>
__device__ void StoreSums(const LinearArgs& args, L& block, int rank, int first_token,
                          int first_row, const float (&parts)[kNumParts][L::kSums]) {
  const int thread = static_cast<int>(threadIdx.x);
  auto* const out = reinterpret_cast<float*>(block.stages);
  const auto at = [](int part, int token, int row) {
    return (part * kTokens + token) * L::kOutPitch + row;
  };
  const int lane_row = thread / 32 * 16 + thread % 32 / 4;
  __syncthreads();
#pragma unroll
  for (int part = 0; part < kNumParts; ++part) {
#pragma unroll
    for (int i = 0; i < L::kSums; ++i) {
      const int token = i / 4 * 8 + thread % 4 * 2 + i % 2;
      out[at(part, token, lane_row + i % 4 / 2 * 8)] = parts[part][i];
    }
  }
  const auto cluster = cooperative_groups::this_cluster();
  if constexpr (kCluster == 1) {
    __syncthreads();
  } else {
    cluster.sync();
  }
  const int fours = min(kTokens, args.tokens - first_token) * L::kRows / 4;
  for (int i = rank * L::kThreads + thread; i < fours; i += kCluster * L::kThreads) {
    const int token = i / (L::kRows / 4);
    const int row = i % (L::kRows / 4) * 4;
    const auto load = [&](int part) {
      const float* const from =
          kCluster == 1 ? out : cluster.map_shared_rank(out, part / kNumParts);
      return *reinterpret_cast<const float4*>(from + at(part % kNumParts, token, row));
    };
    float4 sum = load(0);
    if constexpr (kCluster > 1) {
      constexpr int kHalf = kCluster * kNumParts / 2;
      float4 second = load(kHalf);
#pragma unroll
      for (int part = 1; part < kHalf; ++part) {
        sum = Plus(sum, load(part));
        second = Plus(second, load(kHalf + part));
      }
      sum = Plus(sum, second);
    }
    StoreResults<T, W>(args, first_token + token, first_row + row, sum);
  }
  // The others read this block's sums.
  if constexpr (kCluster > 1) cluster.sync();
}
#endif

// grid: (kCluster; tiles of tokens; blocks of rows).
template <typename T, typename W, int kTokens, int kCluster>
__global__ void __launch_bounds__(kGroups<W, kTokens>* kWarpgroupThreads, 1)
    WarpgroupKernel([[maybe_unused]] const LinearArgs args,
                    [[maybe_unused]] const uint4* arranged) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using L = Layout<W, kTokens, kCluster>;
  // Aligned by its declaration: computing an aligned address would hide the address space from the
  // compiler.
  extern __shared__ __align__(1024) char shared[];
  auto& block = *reinterpret_cast<L*>(shared);
  const int rank = kCluster == 1 ? 0 : static_cast<int>(blockIdx.x);
  const int tile = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.z) * L::kRows;
  const int all_units = (args.cols + kUnitCols - 1) / kUnitCols;
  const int own_units = kOwnSegments<kCluster> * (args.segment / kUnitCols);
  const int begin = min(rank * own_units, all_units);
  const int units = min(own_units, all_units - begin);

  Pipeline<T, W, L> pipeline(
      block, args,
      arranged + (static_cast<int64_t>(tile) * all_units + begin) * (L::kBlockBytes / kPieceBytes),
      first_row, begin, units);
  pipeline.BeginWeights();
  BeginKernel();
  pipeline.BeginTokens();

  float parts[kParts<kCluster>][L::kSums] = {};
  if constexpr (kParts<kCluster> > 1) {
#pragma unroll
    for (auto& sums : parts) {
      if (pipeline.HasMore()) pipeline.RunSegment(sums);
    }
  } else {
    auto& totals = parts[0];
    float sums[L::kSums];
    int segment = 0;
#pragma unroll 1
    for (; pipeline.HasMore(); ++segment) {
      if (kCluster == 1 && segment == kSegments / 2) {
#pragma unroll
        for (int i = 0; i < L::kSums; ++i) {
          block.first_half[i][threadIdx.x] = totals[i];
          totals[i] = 0.0f;
        }
      }
      pipeline.RunSegment(sums);
#pragma unroll
      for (int i = 0; i < L::kSums; ++i) totals[i] += sums[i];
    }
    if (kCluster == 1 && segment > kSegments / 2) {
#pragma unroll
      for (int i = 0; i < L::kSums; ++i) totals[i] += block.first_half[i][threadIdx.x];
    }
  }
  StoreSums<T, W, kTokens, kCluster>(args, block, rank, tile * kTokens, first_row, parts);
#endif
}

// Calls call.operator()<kTokens>() with the tile for this many tokens.
template <typename W, typename Call>
void WithTile(int tokens, const Call& call) {
  if (tokens <= 32) {
    call.template operator()<32>();
  } else if (kIsInt4<W> || tokens <= 64) {
    call.template operator()<64>();
  } else if constexpr (!kIsInt4<W>) {
    call.template operator()<128>();
  }
}

template <typename T, typename W, int kTokens, int kCluster>
void Prepare() {
  CheckCuda(cudaFuncSetAttribute(WarpgroupKernel<T, W, kTokens, kCluster>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 sizeof(Layout<W, kTokens, kCluster>)),
            "shared memory of a product");
}

template <typename T, typename W, int kTokens>
void PrepareTile() {
  Prepare<T, W, kTokens, 1>();
  Prepare<T, W, kTokens, 2>();
  Prepare<T, W, kTokens, 4>();
}

template <typename T, typename W>
void PrepareAll() {
  PrepareTile<T, W, 32>();
  PrepareTile<T, W, 64>();
  if constexpr (!kIsInt4<W>) PrepareTile<T, W, 128>();
}

template <typename T, typename W>
void Arrange(const Context& context, const LinearArgs& args, int tile_tokens, void* arranged) {
  constexpr int kThreads = 256;
  const auto units = static_cast<int>(CeilDiv(args.cols, kUnitCols));
  const auto tokens = static_cast<int>(CeilDiv(args.tokens, tile_tokens)) * tile_tokens;
  const int count = tokens * units * 2;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(count, kThreads)));
  const bool aligned = HasWholePieces(args);
  LaunchEarly(context, "arranging tokens",
              aligned ? ArrangeTokensKernel<T, W, true> : ArrangeTokensKernel<T, W, false>, blocks,
              kThreads, 0, args, tile_tokens, units, count, static_cast<uint4*>(arranged));
}

}  // namespace

void PrepareWarpgroup() {
  PrepareAll<Bf16, Bf16>();
  PrepareAll<Bf16, Fp8>();
  PrepareAll<Bf16, Int8>();
  PrepareAll<Bf16, Int4<1>>();
  PrepareAll<Bf16, Int4<2>>();
  PrepareAll<Fp16, Fp16>();
  PrepareAll<Fp16, Fp8>();
  PrepareAll<Fp16, Int8>();
  PrepareAll<Fp16, Int4<1>>();
  PrepareAll<Fp16, Int4<2>>();
}

template <typename T, typename W>
void LaunchWarpgroup(const Context& context, const LinearArgs& args, void* arranged) {
  TANDEM_CHECK(args.tokens <= WarpgroupTokens(args.cols), "too many tokens for one launch");
  TANDEM_CHECK(!HasFactors(args), "warpgroups take and leave activations as they are");
  WithTile<W>(args.tokens, [&]<int kTokens>() {
    Arrange<T, W>(context, args, kTokens, arranged);
    const auto tiles = CeilDiv(args.tokens, kTokens);
    const auto row_blocks = CeilDiv(args.rows, kGroups<W, kTokens> * kWarpgroupRows);
    const auto launch = [&]<int kCluster>() {
      using L = Layout<W, kTokens, kCluster>;
      LaunchEarlyInClusters(
          context, "a product by warpgroups", kCluster, WarpgroupKernel<T, W, kTokens, kCluster>,
          dim3(kCluster, static_cast<unsigned>(tiles), static_cast<unsigned>(row_blocks)),
          L::kThreads, static_cast<int>(sizeof(L)), args, static_cast<const uint4*>(arranged));
    };
    // The largest cluster size at which all blocks run at once. Clusters of four do not reach every
    // SM, because the number of SMs in a part of the GPU need not be divisible by four.
    const int64_t blocks = tiles * row_blocks;
    if (4 * blocks <= context.num_sms * 9 / 10) {
      launch.template operator()<4>();
    } else if (2 * blocks <= context.num_sms) {
      launch.template operator()<2>();
    } else {
      launch.template operator()<1>();
    }
  });
}

template void LaunchWarpgroup<Bf16, Bf16>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Bf16, Fp8>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Bf16, Int8>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Bf16, Int4<1>>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Bf16, Int4<2>>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Fp16, Fp16>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Fp16, Fp8>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Fp16, Int8>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Fp16, Int4<1>>(const Context&, const LinearArgs&, void*);
template void LaunchWarpgroup<Fp16, Int4<2>>(const Context&, const LinearArgs&, void*);

}  // namespace tandem::ops::cuda
