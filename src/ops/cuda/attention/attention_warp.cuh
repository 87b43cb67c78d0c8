// WarpAttentionKernel, for decoding: at most 16 packed rows per sequence; the warps of a block
// divide the keys of a chunk.
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

  // Begins the copy of 32 rows of the pool; lane l gives the l-th row.
  __device__ void Push(uint32_t row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Kind::kRowPieces; ++i) {
      const int index = i * 32 + lane;
      const int place = index / Kind::kRowPieces, piece = index % Kind::kRowPieces;
      const uint32_t from = __shfl_sync(kAllLanes, row, place);
      CopyPiece(memory_ + head_ + PieceOffset<Kind::kRowPieces>(place, piece),
                pool_ + uint64_t{from} * Kind::kRowBytes + piece * 16, true);
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
  static __device__ uint32_t Next(uint32_t offset) {
    return offset == (kPieces - 1) * Kind::kStepBytes ? 0 : offset + Kind::kStepBytes;
  }
  const uint32_t memory_;
  const std::byte* const pool_;
  uint32_t head_ = 0, tail_ = 0;
};

// Attends the warp's 16 rows to the keys begin + 32 i * stride + [0, 32) before `end`. All warps of
// a block call load_queries() once, when their first copies are under way.
template <typename Kind, typename LoadQueriesOnce>
__device__ inline void AttendWarp(const AttentionParams& params, const HeadView& head,
                                  float key_scale, uint32_t queries, uint32_t queue_memory,
                                  const LoadQueriesOnce& load_queries, int begin, int stride,
                                  int end, RowState<1>& state, RowOutput<Kind> (&output)[1]) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  // Keys before the first that a row sees are read as that one, and those after the sequence's last
  // as the last: no row sees them.
  const int first_key = head.FirstKey<Kind>(params, 0);
  const auto row_at = [&](int key) {
    return head.KeyRow(params, max(min(key + lane, end - 1), first_key));
  };
  const auto value_of = [&](uint32_t row) { return row + params.value_rows; };
  WarpQueue<Kind> queue(queue_memory, params.pool);
  if (max(begin + kStepKeys, first_key + 1) > head.FirstNewKey()) BeginKernel();
  uint32_t row = 0;
  if (begin < end) {
    row = row_at(begin);
    queue.Push(row);
    CommitCopies();
    queue.Push(value_of(row));
    CommitCopies();
    row = row_at(begin + stride);
  }
  load_queries();
  state.Reset();
  ResetOutput<Kind>(output);
  if (begin >= end) return;
  const RowRules<Kind, 1> rules(params, head, 0, key_scale);
  const int all_see = head.LastKey(params, 0);
  const int last_keys[1][2] = {{head.LastKey(params, g), head.LastKey(params, g + 8)}};
  for (int key = begin; key < end; key += stride) {
    // Looked up two steps ahead, because reading the block table takes long too.
    const uint32_t later_row = row_at(key + 2 * stride);
    const bool more = key + stride < end;
    const uint32_t keys = queue.Pop();
    if (more) queue.Push(row);
    CommitCopies();
    float scores[1][4][4];
    Scores<Kind, 1>(queries, keys, scores);
    rules.Apply(key, scores);
    if (key + kStepKeys - 1 > all_see) MaskScores<1>(key, last_keys, scores);
    uint32_t weights[1][2][4];
    Softmax<Kind, 1>(rules.scale(), scores, state, output, weights);
    const uint32_t values = queue.Pop();
    if (more) queue.Push(value_of(row));
    CommitCopies();
    AddValues<Kind, 1>(values, weights, output);
    row = later_row;
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

// Attends the warp's part of an item: with batch_invariant a chunk, so that its arithmetic is that
// of any other kernel's chunk; otherwise every kWarps-th step of the item's only chunk. For all
// warps of a block, of which `shared` is the memory. False: there is no such item.
template <typename Kind>
__device__ inline bool AttendItem(const AttentionParams& params, const AttentionItem item,
                                  float key_scale, std::byte* shared, RowState<1>& state,
                                  RowOutput<Kind> (&output)[1]) {
  if (item.seq < 0) return false;
  // Nobody uses the shared memory of the previous item any more.
  __syncthreads();
  const HeadView head(params, item, static_cast<int>(blockIdx.x));
  const auto load_queries = [&] {
    BeginKernel();
    LoadQueries<Kind>(shared, kWarpRows, threadIdx.x, kBlockThreads, [&](int r) {
      return r < head.rows ? head.Query<typename Kind::Activation>(params, r, Kind::kHeadDim)
                           : nullptr;
    });
    __syncthreads();
  };
  const int warp = threadIdx.x / 32;
  const uint32_t queries = SharedAddress(shared);
  const uint32_t queue = queries + QueryBytes<Kind>() + warp * WarpQueue<Kind>::kBytes;
  const int chunk = item.first_chunk + (params.invariant ? warp : 0);
  const int begin = head.Skipped<Kind>(params, 0) + chunk * item.chunk_keys;
  const int end = min(begin + item.chunk_keys, head.context);
  const int first_step = params.invariant ? 0 : warp;
  const int stride = params.invariant ? kStepKeys : kWarps * kStepKeys;
  AttendWarp<Kind>(params, head, key_scale, queries, queue, load_queries,
                   begin + first_step * kStepKeys, stride, end, state, output);
  return true;
}

// grid: (kv heads, blocks): the heads of an item, which lie side by side, are read together.
template <typename Kind>
__global__ void __launch_bounds__(kBlockThreads, Kind::kFp8 ? 3 : 2)
    WarpAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  extern __shared__ __align__(256) std::byte shared[];
  const int kv_head = blockIdx.x;
  const float key_scale = KeyScale<typename Kind::Element>(params, kv_head);
  const float value_scale = ValueScale<typename Kind::Element>(params, kv_head);
  if (params.is_new_plan) BeginKernelLast();
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;

  for (int index = blockIdx.y; index < params.max_items; index += gridDim.y) {
    RowState<1> state;
    RowOutput<Kind> output[1];
    if (!AttendItem<Kind>(params, params.items[index], key_scale, shared, state, output)) break;

    // Read again, because the loop over keys needs the registers.
    const AttentionItem item = params.items[index];
    const HeadView head(params, item, kv_head);
    const float scale = MergeScale<Kind>(params, key_scale);
    const int chunk = item.first_chunk + (params.invariant ? warp : 0);
    const int64_t slot = SlotOf(params, item.first_slot + chunk, kv_head, 0);
    if (params.invariant) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = g + 8 * half;
        if (chunk >= item.num_chunks || r >= head.rows) continue;
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
        if (g + 8 * half >= head.rows) continue;
        const int place = warp * kWarpRows + g + 8 * half;
        StorePartial<Kind>(parts + place * kDim, states + place, output[0], half,
                           state.max[0][half], state.sum[0][half]);
      }
      __syncthreads();
      for (int r = warp; r < head.rows; r += kWarps) {
        const MergedRow<kDim> row =
            MergeParts<kDim, kWarps>(parts + r * kDim, states + r, kWarpRows, kWarps, scale);
        if (item.num_chunks == 1) {
          row.Store(head.Out<T>(params, r, kDim),
                    value_scale / head.Divisor<Kind>(params, r, row.max, row.sum));
        } else {
          row.StorePart(params.partial + (slot + r) * kDim, params.partial_state + slot + r);
        }
      }
      if (item.num_chunks == 1) continue;
    }
    const int first_item =
        index - (params.invariant ? item.first_chunk / kWarps : item.first_chunk);
    const int num_items =
        params.invariant ? (item.num_chunks + kWarps - 1) / kWarps : item.num_chunks;
    if (FinishesRows(params, first_item, num_items, kv_head, 0)) {
      MergeChunks<Kind>(params, head, item, 0, head.rows, scale, value_scale);
    }
  }
  // One block has to wait even if none has an item; others make room for those that have one.
  if (blockIdx.y != gridDim.y - 1) return;
  BeginKernel();
  if (params.clears_padding) ClearPadding<T>(params, kv_head, kDim);
}

}  // namespace tandem::ops::cuda
