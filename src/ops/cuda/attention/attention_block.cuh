// Kernels whose warps divide the rows of a block. ChunkAttentionKernel, for verification: 64 packed
// rows per block, at most 16 query rows per sequence, several blocks for a head's keys.
// RowTileAttentionKernel, for prefill: 128 rows per block (64 in the invariant option), which walks
// all keys.
#pragma once

#include "ops/cuda/attention/attention_parts.cuh"

namespace tandem::ops::cuda {

enum class KeyOrder {
  kChunks,     // short sequences: a block takes chunks, and stores partial results
  kAll,        // long ones: a block takes all keys in one go
  kAllMerged,  // long ones, invariant: chunk after chunk, merged as by MergeChunks
};

// The block's queue of copies: 64 keys with their values per stage.
template <typename Kind, int kStages>
class BlockQueue {
 public:
  static constexpr int kKeys = 64;
  static constexpr int kRowSlots = 4;  // stages whose rows are known; more than kStages
  static constexpr int kHalfBytes = kKeys * Kind::kRowBytes;
  static constexpr int kStageBytes = 2 * kHalfBytes;
  static constexpr int kBytes = kStages * kStageBytes + kRowSlots * kKeys * 4;
  static_assert(kStages < kRowSlots);

  __device__ explicit BlockQueue(std::byte* memory)
      : memory_(SharedAddress(memory)),
        rows_(reinterpret_cast<uint32_t*>(memory + kStages * kStageBytes)) {}

  __device__ void SetRow(int tile, uint32_t row) {
    rows_[tile % kRowSlots * kKeys + threadIdx.x] = row;
  }
  __device__ void Push(const AttentionParams& params, int tile) {
    const uint32_t to = Keys(tile);
    const uint32_t* rows = rows_ + tile % kRowSlots * kKeys;
    const auto* pool = static_cast<const std::byte*>(params.pool);
#pragma unroll
    for (int i = 0; i < kKeys * Kind::kRowPieces / kBlockThreads; ++i) {
      const int index = i * kBlockThreads + threadIdx.x;
      const int place = index / Kind::kRowPieces, piece = index % Kind::kRowPieces;
      const uint32_t row = rows[place];
      const bool real = row != kNoRow;
      const std::byte* from = pool + (real ? uint64_t{row} * Kind::kRowBytes : 0) + piece * 16;
      const uint32_t at = to + PieceOffset<Kind::kRowPieces>(place, piece);
      CopyPiece(at, from, real);
      CopyPiece(at + kHalfBytes, real ? from + uint64_t{params.value_rows} * Kind::kRowBytes : from,
                real);
    }
  }
  __device__ uint32_t Keys(int tile) const { return memory_ + tile % kStages * kStageBytes; }
  __device__ uint32_t Values(int tile) const { return Keys(tile) + kHalfBytes; }

 private:
  const uint32_t memory_;
  uint32_t* const rows_;
};

template <typename Kind, int kTiles, KeyOrder kOrder, int kQueueStages = 2>
struct BlockPlan {
  static constexpr int kRows = kWarps * 16 * kTiles;
  static constexpr int kStages = kQueueStages;
  using Queue = BlockQueue<Kind, kStages>;
  static constexpr int kQueryBytes = kRows * Kind::kQueryPieces * 16;
  static constexpr int kTotalBytes =
      kOrder == KeyOrder::kAllMerged ? kRows * Kind::kHeadDim * 4 : 0;
  static constexpr int kSharedBytes = kQueryBytes + Queue::kBytes + kTotalBytes;
};

// Results of kAllMerged for the earlier chunks: outputs in shared memory, each lane its own.
template <typename Kind>
struct MergedTile {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
  float* output = nullptr;  // element (n, e) of this thread: [n * 4 + e][kBlockThreads]

  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < Kind::kHeadDim / 2; ++i) output[i * kBlockThreads + threadIdx.x] = 0.0f;
  }
  __device__ void Add(RowState<1>& state, const RowOutput<Kind>& part, float scale) {
    state.SumOverLanes();
    MergeFactors factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factors[half] = Factors(max[half], state.max[0][half], scale);
      max[half] = factors[half].max;
      sum[half] = Merge(factors[half], sum[half], state.sum[0][half]);
    }
#pragma unroll
    for (int n = 0; n < Kind::kHeadDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& total = output[(n * 4 + e) * kBlockThreads + threadIdx.x];
        total = Merge(factors[e / 2], total, part[n][e]);
      }
    }
  }
  __device__ void Take(RowState<1>& state, RowOutput<Kind>& to) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.max[0][half] = max[half];
      state.sum[0][half] = sum[half];
    }
#pragma unroll
    for (int i = 0; i < Kind::kHeadDim / 2; ++i) {
      to[i / 4][i % 4] = output[i * kBlockThreads + threadIdx.x];
    }
  }
};

// The block's rows of one sequence and kv head (those of row tile `tile`) against the keys
// [begin, keys_end) that they see. The result is stored by `store(row, output, half, max, sum)`.
template <typename Kind, int kTiles, KeyOrder kOrder, int kStages = 2, typename Store>
__device__ inline void AttendBlock(const AttentionParams& params, const HeadView& head,
                                   float key_scale, int tile, int begin, int keys_end,
                                   std::byte* shared, const Store& store) {
  using T = typename Kind::Activation;
  using Plan = BlockPlan<Kind, kTiles, kOrder, kStages>;
  using Queue = typename Plan::Queue;
  const int first_row = tile * Plan::kRows;
  const int end = min(keys_end, head.LastKey(params, first_row + Plan::kRows - 1) + 1);
  const int num_tiles = max(end - begin + Queue::kKeys - 1, 0) / Queue::kKeys;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int warp_row = first_row + warp * 16 * kTiles;
  const bool active = warp_row < head.rows;
  const uint32_t queries = SharedAddress(shared) + warp * 16 * kTiles * Kind::kQueryPieces * 16;
  // The last keys that all of the warp's rows see, that any does, and that each does.
  const int all_see = head.LastKey(params, warp_row);
  const int one_sees = head.LastKey(params, warp_row + 16 * kTiles - 1);
  const RowRules<Kind, kTiles> rules(params, head, warp_row, key_scale);
  int last_keys[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    last_keys[i][0] = head.LastKey(params, warp_row + 16 * i + g);
    last_keys[i][1] = head.LastKey(params, warp_row + 16 * i + g + 8);
  }

  Queue queue(shared + Plan::kQueryBytes);
  const bool looks_up = threadIdx.x < Queue::kKeys;
  const int first_key = head.FirstKey<Kind>(params, first_row);
  const auto row_at = [&](int index) {
    const int key = begin + index * Queue::kKeys + static_cast<int>(threadIdx.x);
    return key >= first_key && key < end ? head.KeyRow(params, key) : kNoRow;
  };
  // Nobody uses the memory of the previous work any more.
  __syncthreads();
  if (looks_up) {
#pragma unroll
    for (int i = 0; i < Plan::kStages; ++i) queue.SetRow(i, row_at(i));
  }
  MergedTile<Kind> total;
  if constexpr (kOrder == KeyOrder::kAllMerged) {
    total.output = reinterpret_cast<float*>(shared + Plan::kQueryBytes + Queue::kBytes);
    total.Clear();
  }
  RowState<kTiles> state;
  RowOutput<Kind> output[kTiles];
  state.Reset();
  ResetOutput<Kind>(output);
  __syncthreads();
  constexpr int kFirstKeys = (Plan::kStages - 1) * Queue::kKeys;
  if (kOrder == KeyOrder::kChunks && begin + kFirstKeys > head.FirstNewKey()) BeginKernel();
#pragma unroll
  for (int i = 0; i < Plan::kStages - 1; ++i) {
    if (i < num_tiles) queue.Push(params, i);
    CommitCopies();
  }
  if constexpr (kOrder == KeyOrder::kChunks) BeginKernel();
  LoadQueries<Kind>(shared, Plan::kRows, threadIdx.x, kBlockThreads, [&](int r) {
    return first_row + r < head.rows ? head.Query<T>(params, first_row + r, Kind::kHeadDim)
                                     : nullptr;
  });
  for (int i = 0; i < num_tiles; ++i) {
    WaitForCopies<Plan::kStages - 2>();
    // All threads have waited, so the keys are there; and all are done with the previous stage,
    // which is written now.
    __syncthreads();
    if (i + Plan::kStages - 1 < num_tiles) queue.Push(params, i + Plan::kStages - 1);
    CommitCopies();
    const uint32_t later_row = looks_up ? row_at(i + Plan::kStages) : kNoRow;
#pragma unroll 1
    for (int step = 0; step < Queue::kKeys / kStepKeys; ++step) {
      const int key = begin + i * Queue::kKeys + step * kStepKeys;
      // Keys that none of the warp's rows sees have no effect.
      if (!active || key > one_sees || key >= end) break;
      const uint32_t offset = step * Kind::kStepBytes;
      float scores[kTiles][4][4];
      Scores<Kind, kTiles>(queries, queue.Keys(i) + offset, scores);
      rules.Apply(key, scores);
      if (key + kStepKeys - 1 > all_see) MaskScores<kTiles>(key, last_keys, scores);
      uint32_t weights[kTiles][2][4];
      Softmax<Kind, kTiles>(rules.scale(), scores, state, output, weights);
      AddValues<Kind, kTiles>(queue.Values(i) + offset, weights, output);
    }
    if (looks_up) queue.SetRow(i + Plan::kStages, later_row);
    if constexpr (kOrder == KeyOrder::kAllMerged) {
      const int next_key = begin + (i + 1) * Queue::kKeys;
      if (next_key % kInvariantChunkKeys == 0 || i + 1 == num_tiles) {
        total.Add(state, output[0], rules.scale());
        state.Reset();
        ResetOutput<Kind>(output);
      }
    }
  }
  if constexpr (kOrder == KeyOrder::kAllMerged) {
    total.Take(state, output[0]);
  } else {
    state.SumOverLanes();
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + 16 * i + g + 8 * half;
      if (r < head.rows) store(r, output[i], half, state.max[i][half], state.sum[i][half]);
    }
  }
}

// Short sequences of many packed rows. grid: (kv heads, blocks, row tiles of a sequence)
template <typename Kind, int kStages>
__global__ void __launch_bounds__(kBlockThreads, 2)
    ChunkAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  extern __shared__ __align__(256) std::byte shared[];
  const int tile = blockIdx.z, kv_head = blockIdx.x;
  const float key_scale = KeyScale<typename Kind::Element>(params, kv_head);
  const float value_scale = ValueScale<typename Kind::Element>(params, kv_head);
  if (params.is_new_plan) BeginKernelLast();
  for (int index = blockIdx.y; index < params.max_items; index += gridDim.y) {
    const AttentionItem item = params.items[index];
    if (item.seq < 0) break;
    const HeadView head(params, item, kv_head);
    const int first_row = tile * kBlockRows;
    if (first_row >= head.rows) continue;
    const int begin = head.Skipped<Kind>(params, 0) + item.first_chunk * item.chunk_keys;
    const bool whole = item.num_chunks == 1 && !params.invariant;
    AttendBlock<Kind, 1, KeyOrder::kChunks, kStages>(
        params, head, key_scale, tile, begin, min(begin + item.chunk_keys, head.context), shared,
        [&](int r, const RowOutput<Kind>& output, int half, float max, float sum) {
          if (whole) {
            StoreResult<Kind>(head.Out<T>(params, r, kDim), output, half,
                              value_scale / head.Divisor<Kind>(params, r, max, sum));
          } else {
            const int64_t slot =
                SlotOf(params, item.first_slot + item.first_chunk, head.kv_head, r);
            StorePartial<Kind>(params.partial + slot * kDim, params.partial_state + slot, output,
                               half, max, sum);
          }
        });
    if (!whole && FinishesRows(params, index - item.first_chunk, item.num_chunks, kv_head, tile)) {
      MergeChunks<Kind>(params, head, item, first_row, min(first_row + kBlockRows, head.rows),
                        MergeScale<Kind>(params, key_scale), value_scale);
    }
  }
  // One block has to wait even if none has an item; others make room for those that have one.
  if (blockIdx.y != gridDim.y - 1 || tile != 0) return;
  BeginKernel();
  if (params.clears_padding) ClearPadding<T>(params, kv_head, kDim);
}

// Long sequences. grid: (row tiles, kv heads), the last tiles, which see the most keys, first.
template <typename Kind, int kTiles, KeyOrder kOrder>
__global__ void __launch_bounds__(kBlockThreads, Kind::kFp8&& Kind::kHeadDim == 64 ? 3 : 2)
    RowTileAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  constexpr int kRows = BlockPlan<Kind, kTiles, kOrder>::kRows;
  extern __shared__ __align__(256) std::byte shared[];
  BeginKernel();
  if (params.clears_padding && blockIdx.x == 0) ClearPadding<T>(params, blockIdx.y, kDim);
  const Part where =
      FindPart(params.num_seqs, static_cast<int>(gridDim.x - 1 - blockIdx.x), [&](int seq) {
        const int rows = params.query_start[seq + 1] - params.query_start[seq];
        return rows > params.above_rows ? (rows * params.group + kRows - 1) / kRows : 0;
      });
  if (where.seq < 0) return;
  const HeadView head(params, where.seq, blockIdx.y);
  AttendBlock<Kind, kTiles, kOrder>(
      params, head, KeyScale<typename Kind::Element>(params, head.kv_head), where.part,
      head.Skipped<Kind>(params, where.part * kRows), head.context, shared,
      [&](int r, const RowOutput<Kind>& output, int half, float max, float sum) {
        const float value_scale = ValueScale<typename Kind::Element>(params, head.kv_head);
        StoreResult<Kind>(head.Out<T>(params, r, kDim), output, half,
                          value_scale / head.Divisor<Kind>(params, r, max, sum));
      });
}

}  // namespace tandem::ops::cuda
