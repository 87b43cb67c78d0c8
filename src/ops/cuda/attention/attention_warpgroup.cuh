// Attention of prompts on sm_90, two kernels. GatherTilesKernel copies the keys and values of every
// long sequence out of the pool, in 16 bits, as tiles of 128 positions in the layout of a
// warpgroup's matrix instructions. WarpgroupAttentionKernel gives each block 128 packed rows of a
// sequence and kv head: one thread fetches whole tiles by bulk copies, two warpgroups
// multiply. The softmax of one tile is computed while the values of the tile before are multiplied.
#pragma once

#include "ops/cuda/attention/attention_parts.cuh"
#include "ops/cuda/device/wgmma.cuh"

namespace tandem::ops::cuda {

constexpr int kNumWarpgroups = 2;
constexpr int kRowsOfBlock = kNumWarpgroups * kWarpgroupRows;
constexpr int kMultiplyThreads = kNumWarpgroups * kWarpgroupThreads;
// Plus one warpgroup that fetches. One thread suffices, but registers are reallocated per
// warpgroup: 40 for those that fetch, 232 for the others, of the 168 that 384 threads have each.
constexpr int kLaunchThreads = kMultiplyThreads + kWarpgroupThreads;
constexpr int kTileRowBytes = 128;  // of a matrix instruction's tile

// Queries, keys and values are matrices of 128 rows of a head's elements in 16 bits. The halves of
// a head of 128 lie one after the other, each as 128 rows of 128 bytes in the swizzled order that
// DescribeTile names.
template <typename Kind>
struct GatheredTile {
  static_assert(kRowsOfBlock == kTileKeys);
  static constexpr int kHalves = Kind::kHeadDim * 2 / kTileRowBytes;
  static constexpr int kHalfBytes = kTileKeys * kTileRowBytes;
  static constexpr int kMatrixBytes = kHalves * kHalfBytes;
  static constexpr int kPairBytes = 2 * kMatrixBytes;  // the keys, then their values
  static_assert(kPairBytes == TilePairBytes(Kind::kHeadDim));

  // Offset in bytes of the 16-byte piece of a row.
  static __device__ int PieceOffset(int row, int piece) {
    return piece / 8 * kHalfBytes + row * kTileRowBytes + (piece % 8 ^ row % 8) * kPieceBytes;
  }
};

// The first tile of a sequence's keys that this launch needs, and how many it needs from there on.
template <typename Kind>
__device__ inline int FirstTile(const AttentionParams& params, int first_position) {
  if constexpr (!Kind::kHasRule) return 0;
  return params.seen.Skipped(max(first_position, 0), kTileKeys) / kTileKeys;
}
template <typename Kind>
__device__ inline int TilesOf(const AttentionParams& params, int seq) {
  const int rows = params.query_start[seq + 1] - params.query_start[seq];
  const int context = params.context_len[seq];
  return rows > params.above_rows
             ? (context + kTileKeys - 1) / kTileKeys - FirstTile<Kind>(params, context - rows)
             : 0;
}
// A tile's keys, then its values, of one kv head; tiles are numbered across all sequences.
template <typename Kind>
__device__ inline std::byte* TilePair(const AttentionParams& params, int tile, int kv_head) {
  const int64_t index = int64_t{kv_head - params.first_head} * params.max_tiles + tile;
  return params.tiles + index * GatheredTile<Kind>::kPairBytes;
}

// A piece of the pool as the elements of 16 bits that are multiplied: fp8 becomes two pieces.
template <typename Kind>
__device__ inline void StoreWide(std::byte* first, std::byte* second, const uint4& bits) {
  if constexpr (Kind::kFp8) {
    const uint32_t from[4] = {bits.x, bits.y, bits.z, bits.w};
    uint32_t wide[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) Fp8ToFp16(from[i], wide[2 * i], wide[2 * i + 1]);
    *reinterpret_cast<uint4*>(first) = make_uint4(wide[0], wide[1], wide[2], wide[3]);
    *reinterpret_cast<uint4*>(second) = make_uint4(wide[4], wide[5], wide[6], wide[7]);
  } else {
    *reinterpret_cast<uint4*>(first) = bits;
  }
}

// grid: (params.max_tiles, kv heads). A thread copies pieces of 16 bytes of the pool; positions
// before the first that a row sees and after the last become zeros: they are masked, but a weight
// of 0 times a NaN would count.
template <typename Kind>
__global__ void __launch_bounds__(kMultiplyThreads)
    GatherTilesKernel(const __grid_constant__ AttentionParams params) {
  using Tile = GatheredTile<Kind>;
  BeginKernel();
  const Part where = FindPart(params.num_seqs, static_cast<int>(blockIdx.x),
                              [&](int seq) { return TilesOf<Kind>(params, seq); });
  if (where.seq < 0) return;
  const HeadView head(params, where.seq, params.first_head + static_cast<int>(blockIdx.y));
  std::byte* const to = TilePair<Kind>(params, static_cast<int>(blockIdx.x), head.kv_head);
  const int tile = FirstTile<Kind>(params, head.Position(params, 0)) + where.part;
  constexpr int kWide = Kind::kFp8 ? 2 : 1;  // pieces that one of the pool becomes
  constexpr int kRowsAtOnce = kMultiplyThreads / Kind::kRowPieces;
  const int piece = static_cast<int>(threadIdx.x) % Kind::kRowPieces;
  const int first_key = head.FirstKey<Kind>(params, 0);
  const auto* const pool = static_cast<const std::byte*>(params.pool);
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x) / Kind::kRowPieces; row < kTileKeys;
       row += kRowsAtOnce) {
    const int key = tile * kTileKeys + row;
    uint4 bits[2] = {};  // of the key, of the value
    if (key >= first_key && key < head.context) {
      const uint64_t pool_row = head.KeyRow(params, key);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        bits[i] = *reinterpret_cast<const uint4*>(
            pool + (pool_row + static_cast<uint64_t>(i) * params.value_rows) * Kind::kRowBytes +
            piece * kPieceBytes);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::byte* const matrix = to + i * Tile::kMatrixBytes;
      StoreWide<Kind>(matrix + Tile::PieceOffset(row, kWide * piece),
                      matrix + Tile::PieceOffset(row, kWide * piece + kWide - 1), bits[i]);
    }
  }
}

// The contents of a block's shared memory.
template <typename Kind>
struct TilesInFlight {
  static constexpr int kStages = 2;
  std::byte queries[GatheredTile<Kind>::kMatrixBytes];
  std::byte keys[kStages][GatheredTile<Kind>::kMatrixBytes];
  std::byte values[kStages][GatheredTile<Kind>::kMatrixBytes];
  struct Barriers {
    uint64_t full[kStages];   // the copy has arrived
    uint64_t empty[kStages];  // all warps have multiplied it
  };
  Barriers of_keys, of_values;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A warpgroup's 64 packed rows. Lanes hold rows and keys as for mma.m16n8k16.
template <typename Kind>
class WarpgroupState {
 public:
  using T = typename Kind::Compute;
  using Tile = GatheredTile<Kind>;
  static constexpr int kDim = Kind::kHeadDim;

  __device__ explicit WarpgroupState(float scale) : scale_(scale) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) output[i] = 0.0f;
  }

  // The largest score, scaled, and the sum of this lane's weights, of rows g and g + 8.
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
  float output[kDim / 2];

  __device__ void BeginScores(uint64_t queries, uint64_t keys) {
    BeginProducts();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint64_t at = k / 4 * (Tile::kHalfBytes / 16) + k % 4 * kNext16Columns;
      BeginProduct<T>(scores_, queries + at, keys + at, k > 0);
    }
    CommitProducts();
  }
  __device__ void BeginValues(uint64_t values) {
    BeginProducts();
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      BeginProduct<T, kDim, true>(output, weights_[4 * k], weights_[4 * k + 1], weights_[4 * k + 2],
                                  weights_[4 * k + 3], values + k * kNext16Rows, true);
    }
    CommitProducts();
  }
  __device__ void WaitForScores() { WaitForProducts(scores_); }
  // Values of an earlier tile may still be multiplied.
  __device__ void WaitForScoresOnly() { WaitForEarlierProducts(scores_); }
  __device__ void WaitForValues() { WaitForProducts(output); }

  // As RowRules::Apply, of the keys of a tile; `key` is the first.
  __device__ void ApplyRule(int key, const ScoreRule& rule, const int (&positions)[2],
                            const int (&earliest)[2], const float (&slopes)[2]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i) {
      const int half = i / 2 % 2;
      const int later = key + i / 4 * 8 + 2 * t + i % 2 - positions[half];
      scores_[i] = rule.Apply(scores_[i], later, earliest[half], slopes[half]);
    }
  }
  // Masks the keys after the last that each row sees; `key` is the first of the tile.
  __device__ void Mask(int key, const int (&last_keys)[2]) {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kTileKeys / 2; ++i) {
      if (key + i / 4 * 8 + 2 * t + i % 2 > last_keys[i / 2 % 2]) scores_[i] = -INFINITY;
    }
  }
  // Turns the scores into weights relative to the new maximum. Without a window the first tile has
  // a key that every row sees, so the maximum is a number from then on.
  __device__ void Weigh() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
        largest = fmaxf(largest, fmaxf(scores_[4 * n + 2 * half], scores_[4 * n + 2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      const float new_max = fmaxf(max[half], largest * scale_);
      const float base = Kind::kHasRule && new_max == -INFINITY ? 0.0f : new_max;
      factor_[half] = Exp2(max[half] - base);
      max[half] = new_max;
      float of_tile = 0.0f;
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          // Rounded once, with the maximum exactly as it will be compared.
          float& score = scores_[4 * n + e];
          score = Exp2(__fmaf_rn(score, scale_, -base));
          of_tile += score;
        }
      }
      sum[half] = __fmaf_rn(sum[half], factor_[half], of_tile);
    }
  }
  // No product of values may be running: makes the earlier output relative to the new maximum, and
  // the weights what the next BeginValues multiplies.
  __device__ void TakeWeights() {
    // Mostly no row finds a larger score.
    if (__any_sync(kAllLanes, factor_[0] != 1.0f || factor_[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) output[i] *= factor_[i / 2 % 2];
    }
#pragma unroll
    for (int i = 0; i < kTileKeys / 4; ++i) {
      weights_[i] = PackPair<T>(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

 private:
  const float scale_;
  float factor_[2];
  float scores_[kTileKeys / 2];
  uint32_t weights_[kTileKeys / 4];
};

// One thread's work: the tiles of the block's sequence and head in their order.
template <typename Kind>
__device__ inline void FetchTiles(TilesInFlight<Kind>& shared, const std::byte* pairs, int count) {
  using Tile = GatheredTile<Kind>;
  SeeEarlierStores();
  // The parity is of the phase before the first: it counts as ended.
  RingPlace<TilesInFlight<Kind>::kStages> at{.parity = 1};
  for (int tile = 0; tile < count; ++tile, pairs += Tile::kPairBytes, at.Advance()) {
    WaitForPhase(&shared.of_keys.empty[at.stage], at.parity);
    CopyBlock(true, shared.keys[at.stage], pairs, Tile::kMatrixBytes,
              &shared.of_keys.full[at.stage]);
    WaitForPhase(&shared.of_values.empty[at.stage], at.parity);
    CopyBlock(true, shared.values[at.stage], pairs + Tile::kMatrixBytes, Tile::kMatrixBytes,
              &shared.of_values.full[at.stage]);
  }
}

// The queries of the block's rows, in the layout of a tile; rows after the last are zeros.
template <typename Kind>
__device__ inline void StoreQueries(const AttentionParams& params, const HeadView& head,
                                    int first_row, std::byte* to) {
  using T = typename Kind::Activation;
  for (int i = static_cast<int>(threadIdx.x); i < kRowsOfBlock * Kind::kQueryPieces;
       i += kMultiplyThreads) {
    const int row = i / Kind::kQueryPieces, piece = i % Kind::kQueryPieces;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (first_row + row < head.rows) {
      const T* const from = head.Query<T>(params, first_row + row, Kind::kHeadDim) + piece * 8;
      if constexpr (Kind::kFp8) {
        bits = QueriesInFp16(from);
      } else {
        bits = *reinterpret_cast<const uint4*>(from);
      }
    }
    *reinterpret_cast<uint4*>(to + GatheredTile<Kind>::PieceOffset(row, piece)) = bits;
  }
  PublishTile();
}

// A warpgroup's rows from packed row `first_row` on, against the tiles [begin, end) of the keys.
template <typename Kind>
__device__ inline void AttendWarpgroup(const AttentionParams& params, const HeadView& head,
                                       int first_row, int begin, int end,
                                       TilesInFlight<Kind>& shared) {
  using T = typename Kind::Activation;
  using Tile = GatheredTile<Kind>;
  constexpr int kStages = TilesInFlight<Kind>::kStages;
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = thread / kWarpgroupThreads;
  const int row = first_row + thread / 32 * 16 + thread % 32 / 4;
  const int last_keys[2] = {head.LastKey(params, row), head.LastKey(params, row + 8)};
  // Tiles whose keys all rows see.
  const int whole = (head.LastKey(params, first_row + warpgroup * kWarpgroupRows) + 1) / kTileKeys;
  const uint64_t queries =
      DescribeTile(shared.queries + warpgroup * kWarpgroupRows * kTileRowBytes);

  const float key_scale = KeyScale<typename Kind::Element>(params, head.kv_head);
  const ScoreRule rule(params, key_scale);
  [[maybe_unused]] int positions[2];
  [[maybe_unused]] int earliest[2];
  [[maybe_unused]] float slopes[2];
  if constexpr (Kind::kHasRule) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = min(row + 8 * half, head.rows - 1);
      positions[half] = head.Position(params, r);
      earliest[half] = params.seen.FirstKey(positions[half]) - positions[half];
      slopes[half] = head.Slope(params, r);
    }
  }
  WarpgroupState<Kind> rows(MergeScale<Kind>(params, key_scale));
  int stage = 0;
  uint32_t parity = 0;  // of the stage
  const auto begin_scores = [&] {
    WaitForPhase(&shared.of_keys.full[stage], parity);
    rows.BeginScores(queries, DescribeTile(shared.keys[stage]));
  };
  // Wait for the tile's values first; see below.
  const auto begin_values = [&](int of_stage) {
    rows.BeginValues(DescribeTile(shared.values[of_stage], Tile::kHalfBytes));
  };
  const auto release = [&](uint64_t& empty) {
    if (thread % 32 == 0) Arrive(&empty);
  };
  const auto see = [&](int tile) __attribute__((always_inline)) {
    if constexpr (Kind::kHasRule)
      rows.ApplyRule(tile * kTileKeys, rule, positions, earliest, slopes);
  };
  const auto see_in_part = [&](int tile) __attribute__((always_inline)) {
    see(tile);
    rows.Mask(tile * kTileKeys, last_keys);
  };

  begin_scores();
  rows.WaitForScores();
  release(shared.of_keys.empty[0]);
  if (whole <= begin) {
    see_in_part(begin);
  } else {
    see(begin);
  }
  rows.Weigh();
  WaitForPhase(&shared.of_values.full[0], 0);
  rows.TakeWeights();

  // Inlined by force: the sums of running products must stay in their registers.
  const auto run = [&](int from, int to, const auto& mask) __attribute__((always_inline)) {
#pragma unroll 1
    for (int tile = from; tile < to; ++tile) {
      const int before = stage;
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
      begin_scores();
      begin_values(before);
      rows.WaitForScoresOnly();
      release(shared.of_keys.empty[stage]);
      mask(tile);
      rows.Weigh();
      // Keep this wait before WaitForValues. Its loop stops the compiler from moving the softmax
      // past that call; the softmax would then run after the products instead of beside them.
      WaitForPhase(&shared.of_values.full[stage], parity);
      rows.WaitForValues();
      release(shared.of_values.empty[before]);
      rows.TakeWeights();
    }
  };
  const int masked_from = max(min(whole, end), begin + 1);
  run(begin + 1, masked_from, see);
  run(masked_from, end, see_in_part);
  begin_values(stage);
  rows.WaitForValues();

  const float value_scale = ValueScale<typename Kind::Element>(params, head.kv_head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (row + 8 * half >= head.rows) continue;
    const float factor =
        value_scale / head.Divisor<Kind>(params, row + 8 * half, rows.max[half], sum);
    T* const out = head.Out<T>(params, row + 8 * half, Kind::kHeadDim) + thread % 4 * 2;
#pragma unroll
    for (int n = 0; n < Kind::kHeadDim / 8; ++n) {
      const float x = rows.output[4 * n + 2 * half], y = rows.output[4 * n + 2 * half + 1];
      *reinterpret_cast<uint32_t*>(out + 8 * n) = PackPair<T>(x * factor, y * factor);
    }
  }
}
#endif

// grid: (row tiles, kv heads), the last tiles, which see the most keys, first.
template <typename Kind>
__global__ void __launch_bounds__(kLaunchThreads, 1)
    WarpgroupAttentionKernel([[maybe_unused]] const __grid_constant__ AttentionParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<TilesInFlight<Kind>*>(memory);
  BeginKernel();
  const int kv_head = params.first_head + static_cast<int>(blockIdx.y);
  if (params.clears_padding && blockIdx.x == 0) {
    ClearPadding<typename Kind::Activation>(params, kv_head, Kind::kHeadDim);
  }
  const Part where =
      FindPart(params.num_seqs, static_cast<int>(gridDim.x - 1 - blockIdx.x), [&](int seq) {
        const int rows = params.query_start[seq + 1] - params.query_start[seq];
        return rows > params.above_rows ? (rows * params.group + kRowsOfBlock - 1) / kRowsOfBlock
                                        : 0;
      });
  if (where.seq < 0) return;
  const HeadView head(params, where.seq, kv_head);
  const int first_row = where.part * kRowsOfBlock;
  const int end = min(head.LastKey(params, first_row + kRowsOfBlock - 1) + 1, head.context);
  // No keys: the plan contradicts the state, which the step reports when it has ended.
  if (end <= 0) return;
  const int begin_tile = FirstTile<Kind>(params, head.Position(params, first_row));
  const int end_tile = (end + kTileKeys - 1) / kTileKeys;

  const int tiles_before =
      CountParts(where.seq, [&](int seq) { return TilesOf<Kind>(params, seq); });
  const int first_tile = FirstTile<Kind>(params, head.Position(params, 0));
  const std::byte* const pairs =
      TilePair<Kind>(params, tiles_before + begin_tile - first_tile, kv_head);

  const bool fetches = threadIdx.x >= kMultiplyThreads;
  if (threadIdx.x == kMultiplyThreads) {
    for (auto* const barriers : {&shared.of_keys, &shared.of_values}) {
      for (int stage = 0; stage < TilesInFlight<Kind>::kStages; ++stage) {
        InitBarrier(&barriers->full[stage], 1);
        InitBarrier(&barriers->empty[stage], kMultiplyThreads / 32);
      }
    }
    PublishBarriers();
  }
  if (fetches) {
    // FetchTiles needs no more.
    ShrinkRegistersTo<40>();
    // The first tiles are on their way before the queries are there.
    asm volatile("barrier.cta.arrive 1, %0;" ::"n"(kLaunchThreads) : "memory");
    if (threadIdx.x == kMultiplyThreads) {
      FetchTiles<Kind>(shared, pairs, end_tile - begin_tile);
    }
    return;
  }
  GrowRegistersTo<232>();
  StoreQueries<Kind>(params, head, first_row, shared.queries);
  // The barriers are set up and the queries there.
  asm volatile("barrier.cta.sync 1, %0;" ::"n"(kLaunchThreads) : "memory");
  AttendWarpgroup<Kind>(params, head, first_row, begin_tile, end_tile, shared);
#endif
}

}  // namespace tandem::ops::cuda
