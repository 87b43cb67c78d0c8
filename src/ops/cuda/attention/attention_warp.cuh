// WarpAttentionKernel, for decoding, and for verification of few sequences: 16 packed rows per
// block, whose warps divide the keys of a chunk.
#pragma once

#include "ops/cuda/attention/attention_parts.cuh"

namespace tandem::ops::cuda {

// A warp's own queue of copies: keys and values of 32 positions alternate, with two pieces in
// flight while one is used. No other warp touches it, so no block-wide barrier is needed.
template <typename Kind>
class WarpQueue {
 public:
  static constexpr int kPieces = 3;
  static constexpr int kBytes = kPieces * Kind::kStepBytes;

  __device__ WarpQueue(uint32_t memory, const void* pool)
      : memory_(memory), pool_(static_cast<const std::byte*>(pool)) {}

  // Begins the copy of 32 rows of the pool; lane l gives the l-th row. side_by_side: each
  // follows that of the lane before, so that addresses take a few instructions instead of a
  // hundred.
  __device__ void Push(uint32_t row, bool side_by_side) {
    const int lane = threadIdx.x % 32;
    const uint32_t to = memory_ + head_;
    if (side_by_side) {
      const uint32_t first = __shfl_sync(kAllLanes, row, 0);
      const std::byte* const from = pool_ + uint64_t{first} * Kind::kRowBytes + lane * 16;
#pragma unroll
      for (int i = 0; i < Kind::kRowPieces; ++i) {
        CopyPiece(to + PlaceOf(i, lane), from + i * 32 * 16, true);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < Kind::kRowPieces; ++i) {
        const int place = (i * 32 + lane) / Kind::kRowPieces, piece = lane % Kind::kRowPieces;
        const uint32_t of_place = __shfl_sync(kAllLanes, row, place);
        CopyPiece(to + PlaceOf(i, lane), pool_ + uint64_t{of_place} * Kind::kRowBytes + piece * 16,
                  true);
      }
    }
    head_ = Next(head_);
  }
  // The shared address of the oldest piece, once it has arrived; one group may still be in flight.
  // The piece returned by the previous Pop may be overwritten from now on.
  __device__ uint32_t Pop() {
    WaitForCopies<1>();
    __syncwarp();
    const uint32_t address = memory_ + tail_;
    tail_ = Next(tail_);
    return address;
  }

 private:
  // Where in a piece of the queue the i-th 16 bytes that the lane copies belong.
  static __device__ uint32_t PlaceOf(int i, int lane) {
    constexpr int kRows = 32 / Kind::kRowPieces;  // that a warp copies at a time
    static_assert(Kind::kRowPieces <= 32);
    // The row is i * kRows plus the lane's, which have no bit in common: their swaps add up by xor.
    return OtherPiece(
               PieceOffset<Kind::kRowPieces>(lane / Kind::kRowPieces, lane % Kind::kRowPieces),
               PieceSwap<Kind::kRowPieces>(i * kRows)) +
           i * 32 * 16;
  }
  static __device__ uint32_t Next(uint32_t offset) {
    return offset == (kPieces - 1) * Kind::kStepBytes ? 0 : offset + Kind::kStepBytes;
  }
  const uint32_t memory_;
  const std::byte* const pool_;
  uint32_t head_ = 0, tail_ = 0;
};

// Attends the warp's 16 rows, from packed row first_row on, to the keys begin + i * stride + [0,
// 32) before `end`. All warps of a block call load_queries() once, when their first copies are
// under way.
template <typename Kind, typename LoadQueriesOnce>
__device__ inline void AttendWarp(const AttentionParams& params, const HeadView& head,
                                  int first_row, float key_scale, uint32_t queries,
                                  uint32_t queue_memory, const LoadQueriesOnce& load_queries,
                                  int begin, int stride, int end, RowState<1>& state,
                                  RowOutput<Kind> (&output)[1]) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  // Keys before the first that a row sees are read as that one, and those after the sequence's last
  // as the last: no row sees them.
  const int first_key = head.FirstKey<Kind>(params, first_row);
  const auto find = [&](int key) {
    return head.Find(params, max(min(key + lane, end - 1), first_key));
  };
  const auto value_of = [&](uint32_t row) { return row + params.value_rows; };
  // Steps begin at multiples of kStepKeys, so none lies in two blocks of whole steps.
  const bool whole_steps = params.block_tokens % kStepKeys == 0;
  const auto side_by_side = [&](int key) {
    return whole_steps && key >= first_key && key + kStepKeys <= end;
  };
  WarpQueue<Kind> queue(queue_memory, params.pool);
  if (max(begin + kStepKeys, first_key + 1) > head.FirstNewKey()) BeginKernel();
  HeadView::KeyPlace next;
  if (begin < end) {
    const HeadView::KeyPlace first = find(begin);
    next = find(begin + stride);
    const uint32_t row = head.KeyRow(params, first);
    queue.Push(row, side_by_side(begin));
    CommitCopies();
    queue.Push(value_of(row), side_by_side(begin));
    CommitCopies();
  }
  load_queries();
  state.Reset();
  ResetOutput<Kind>(output);
  if (begin >= end) return;
  const RowRules<Kind, 1> rules(params, head, first_row, key_scale);
  const int all_see = head.LastKey(params, first_row);
  const int last_keys[1][2] = {
      {head.LastKey(params, first_row + g), head.LastKey(params, first_row + g + 8)}};
  for (int key = begin; key < end; key += stride) {
    const uint32_t row = head.KeyRow(params, next);
    next = find(key + 2 * stride);
    const bool more = key + stride < end;
    const bool adjacent = side_by_side(key + stride);
    const uint32_t keys = queue.Pop();
    if (more) queue.Push(row, adjacent);
    CommitCopies();
    float scores[1][4][4];
    Scores<Kind, 1>(queries, keys, scores);
    rules.Apply(key, scores);
    if (key + kStepKeys - 1 > all_see) MaskScores<1>(key, last_keys, scores);
    uint32_t weights[1][2][4];
    Softmax<Kind, 1>(rules.scale(), scores, state, output, weights);
    const uint32_t values = queue.Pop();
    if (more) queue.Push(value_of(row), adjacent);
    CommitCopies();
    AddValues<Kind, 1>(values, weights, output);
  }
  // The next chunk's copies start in the first piece, which a slower lane may still be reading.
  WaitForCopies<0>();
  __syncwarp();
  state.SumOverLanes();
}

// Of the block's queries, which the queues of its warps follow in shared memory.
template <typename Kind>
constexpr int QueryBytes() {
  return kWarpRows * Kind::kQueryPieces * 16;
}
template <typename Kind>
constexpr int WarpAttentionSharedBytes() {
  return QueryBytes<Kind>() + kWarps * WarpQueue<Kind>::kBytes;
}

// Attends the warp's part of an item to the rows from packed row first_row on: with batch_invariant
// a chunk, so that its arithmetic is that of any other kernel's chunk; otherwise every kWarps-th
// step of the item's only chunk. For all warps of a block, of which `shared` is the memory.
template <typename Kind>
__device__ inline void AttendItem(const AttentionParams& params, const AttentionItem item,
                                  int first_row, float key_scale, std::byte* shared,
                                  RowState<1>& state, RowOutput<Kind> (&output)[1]) {
  // Nobody uses the shared memory of the previous item any more.
  __syncthreads();
  const HeadView head(params, item, static_cast<int>(blockIdx.x));
  const auto load_queries = [&] {
    BeginKernel();
    LoadQueries<Kind>(shared, kWarpRows, threadIdx.x, kBlockThreads, [&](int r) {
      r += first_row;
      return r < head.rows ? head.Query<typename Kind::Activation>(params, r, Kind::kHeadDim)
                           : nullptr;
    });
    __syncthreads();
  };
  const int warp = threadIdx.x / 32;
  const uint32_t queries = SharedAddress(shared);
  const uint32_t queue = queries + QueryBytes<Kind>() + warp * WarpQueue<Kind>::kBytes;
  const int chunk = item.first_chunk + (params.invariant ? warp : 0);
  // As the plan has it: from the first key of the sequence's first row, whatever this tile's rows.
  const int begin = head.Skipped<Kind>(params, 0) + chunk * item.chunk_keys;
  const int end = min(begin + item.chunk_keys, head.context);
  const int first_step = params.invariant ? 0 : warp;
  const int stride = params.invariant ? kStepKeys : kWarps * kStepKeys;
  AttendWarp<Kind>(params, head, first_row, key_scale, queries, queue, load_queries,
                   begin + first_step * kStepKeys, stride, end, state, output);
}

// grid: (kv heads, blocks, tiles of 16 rows): the heads of an item, which lie side by side, are
// read together.
template <typename Kind>
__global__ void __launch_bounds__(kBlockThreads, Kind::kFp8 ? 3 : 2)
    WarpAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  extern __shared__ __align__(256) std::byte shared[];
  const int kv_head = blockIdx.x, tile = blockIdx.z;
  const int first_row = tile * kWarpRows;
  const float key_scale = KeyScale<typename Kind::Element>(params, kv_head);
  const float value_scale = ValueScale<typename Kind::Element>(params, kv_head);
  if (params.is_new_plan) BeginKernelLast();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;

  for (int index = blockIdx.y; index < params.max_items; index += gridDim.y) {
    const AttentionItem to_attend = params.items[index];
    if (to_attend.seq < 0) break;
    if (first_row >= to_attend.query_rows * params.group) continue;
    RowState<1> state;
    RowOutput<Kind> output[1];
    AttendItem<Kind>(params, to_attend, first_row, key_scale, shared, state, output);

    // Read again, because the loop over keys needs the registers.
    const AttentionItem item = params.items[index];
    const HeadView head(params, item, kv_head);
    const int rows = min(head.rows - first_row, kWarpRows);
    const float scale = MergeScale<Kind>(params, key_scale);
    const int chunk = item.first_chunk + (params.invariant ? warp : 0);
    const int64_t slot = SlotOf(params, item.first_slot + chunk, kv_head, first_row);
    if (params.invariant) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = g + 8 * half;
        if (chunk >= item.num_chunks || r >= rows) continue;
        StorePartial<Kind>(params.partial + (slot + r) * kDim, params.partial_state + slot + r,
                           output[0], half, state.max[0][half], state.sum[0][half]);
      }
    } else {
      // The warps' parts are merged in the memory of the queues.
      static_assert(kWarps * WarpQueue<Kind>::kBytes >= kWarps * kWarpRows * (kDim + 2) * 4);
      auto* parts = reinterpret_cast<float*>(shared + QueryBytes<Kind>());
      auto* states = reinterpret_cast<float2*>(parts + kWarps * kWarpRows * kDim);
      __syncthreads();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (g + 8 * half >= rows) continue;
        const int place = warp * kWarpRows + g + 8 * half;
        StorePartial<Kind>(parts + place * kDim, states + place, output[0], half,
                           state.max[0][half], state.sum[0][half]);
      }
      __syncthreads();
      MergeRows<kDim>(parts, states, kWarpRows, kWarps, rows, scale, [&](int r, const auto& row) {
        if (item.num_chunks == 1) {
          r += first_row;
          row.Store(head.Out<T>(params, r, kDim),
                    value_scale / head.Divisor<Kind>(params, r, row.max, row.sum));
        } else {
          row.StorePart(params.partial + (slot + r) * kDim, params.partial_state + slot + r);
        }
      });
      if (item.num_chunks == 1) continue;
    }
    const int first_item =
        index - (params.invariant ? item.first_chunk / kWarps : item.first_chunk);
    const int num_items =
        params.invariant ? (item.num_chunks + kWarps - 1) / kWarps : item.num_chunks;
    if (FinishesRows(params, first_item, num_items, kv_head, tile)) {
      MergeChunks<Kind>(params, head, item, first_row, first_row + rows, scale, value_scale);
    }
  }
  // One block has to wait even if none has an item; others make room for those that have one.
  if (blockIdx.y != gridDim.y - 1 || tile != 0) return;
  BeginKernel();
  if (params.clears_padding) ClearPadding<T>(params, kv_head, kDim);
}

}  // namespace tandem::ops::cuda
