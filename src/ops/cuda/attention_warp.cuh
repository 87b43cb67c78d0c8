// WarpAttentionKernel, for decoding: at most 16 packed rows per sequence; the warps of a block
// divide the keys of a chunk.
#pragma once

#include "ops/cuda/attention_parts.cuh"

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

// Attends the warp's 16 rows to the keys begin + 32 i * stride + [0, 32) before `end`.
template <typename Kind>
__device__ inline void AttendWarp(const AttentionParams& params, const HeadView& head,
                                  uint32_t queries, uint32_t queue_memory,
                                  const int (&last_keys)[1][2], int begin, int stride, int end,
                                  RowState<1>& state, RowOutput<Kind> (&output)[1]) {
  const int lane = threadIdx.x % 32;
  const float scale = ScoreScale<typename Kind::Element>(params, head.kv_head);
  const int all_see = head.LastKey(params, 0);
  // Keys after the sequence's last are read as the last one: no row sees them.
  const auto row_at = [&](int key) { return head.KeyRow(params, min(key + lane, end - 1)); };
  const auto value_of = [&](uint32_t row) { return row + params.value_rows; };
  state.Reset();
  ResetOutput<Kind>(output);
  if (begin >= end) return;
  WarpQueue<Kind> queue(queue_memory, params.pool);
  uint32_t row = row_at(begin);
  queue.Push(row);
  CommitCopies();
  queue.Push(value_of(row));
  CommitCopies();
  row = row_at(begin + stride);
  for (int key = begin; key < end; key += stride) {
    // Looked up two steps ahead, because reading the block table takes long too.
    const uint32_t later_row = row_at(key + 2 * stride);
    const bool more = key + stride < end;
    const uint32_t keys = queue.Pop();
    if (more) queue.Push(row);
    CommitCopies();
    float scores[1][4][4];
    Scores<Kind, 1>(queries, keys, scores);
    if (key + kStepKeys - 1 > all_see) MaskScores<1>(key, last_keys, scores);
    uint32_t weights[1][2][4];
    Softmax<Kind, 1>(scale, scores, state, output, weights);
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

template <typename Kind>
constexpr int WarpAttentionSharedBytes() {
  return kWarpRows * Kind::kQueryPieces * 16 + kWarps * WarpQueue<Kind>::kBytes;
}

// grid: (blocks, kv heads)
template <typename Kind>
__global__ void __launch_bounds__(kBlockThreads, Kind::kFp8 ? 3 : 2)
    WarpAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  extern __shared__ __align__(256) std::byte shared[];
  BeginKernel();
  if (params.clears_padding && blockIdx.x == 0) ClearPadding<T>(params, blockIdx.y, kDim);
  const Chunks chunks(params);
  std::byte* queues = shared + kWarpRows * Kind::kQueryPieces * 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const uint32_t queries = SharedAddress(shared);
  const uint32_t queue = SharedAddress(queues) + warp * WarpQueue<Kind>::kBytes;

  for (int item = blockIdx.x; item < params.max_items; item += gridDim.x) {
    const Part where = chunks.FindItem(item);
    if (where.seq < 0) return;
    const HeadView head(params, where.seq, blockIdx.y);
    // Nobody reads the previous item's queries any more.
    __syncthreads();
    LoadQueries<Kind>(shared, kWarpRows, threadIdx.x, kBlockThreads, [&](int r) {
      return r < head.rows ? head.Query<T>(params, r, kDim) : nullptr;
    });
    __syncthreads();
    const int last_keys[1][2] = {{head.LastKey(params, g), head.LastKey(params, g + 8)}};
    const int chunk_keys = chunks.Keys(head.context);
    const SequenceCut cut = chunks.CutOf(where, head);
    // With batch_invariant a chunk belongs to one warp, so that its arithmetic is that of any other
    // kernel's chunk; otherwise the warps take the steps of one chunk in turn.
    const int chunk = params.invariant ? where.part * kWarps + warp : where.part;
    const int begin = chunk * chunk_keys, end = min(begin + chunk_keys, head.context);
    const int first_step = params.invariant ? 0 : warp;
    const int stride = params.invariant ? kStepKeys : kWarps * kStepKeys;
    RowState<1> state;
    RowOutput<Kind> output[1];
    AttendWarp<Kind>(params, head, queries, queue, last_keys, begin + first_step * kStepKeys,
                     stride, end, state, output);

    if (params.invariant) {
      if (chunk >= cut.num_chunks) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = g + 8 * half;
        if (r >= head.rows) continue;
        const int64_t slot = SlotOf(params, cut.first_chunk + chunk, head.kv_head, r);
        StorePartial<Kind>(params.partial + slot * kDim, params.partial_state + slot, output[0],
                           half, state.max[0][half], state.sum[0][half]);
      }
      continue;
    }

    // The warps' parts are merged in the memory of the queues.
    static_assert(kWarps * WarpQueue<Kind>::kBytes >= kWarps * kWarpRows * (kDim + 2) * 4);
    auto* parts = reinterpret_cast<float*>(queues);
    auto* states = reinterpret_cast<float2*>(parts + kWarps * kWarpRows * kDim);
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = warp * kWarpRows + g + 8 * half;
      StorePartial<Kind>(parts + place * kDim, states + place, output[0], half, state.max[0][half],
                         state.sum[0][half]);
    }
    __syncthreads();
    const float scale = ScoreScale<typename Kind::Element>(params, head.kv_head);
    for (int r = warp; r < head.rows; r += kWarps) {
      MergedRow<kDim> row;
#pragma unroll
      for (int part = 0; part < kWarps; ++part) {
        const int place = part * kWarpRows + r;
        row.Add(parts + place * kDim, states[place], scale);
      }
      if (cut.num_chunks == 1) {
        row.Store(head.Out<T>(params, r, kDim),
                  ValueScale<typename Kind::Element>(params, head.kv_head));
        continue;
      }
      const int64_t slot = SlotOf(params, cut.first_chunk + chunk, head.kv_head, r);
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        params.partial[slot * kDim + lane + 32 * i] = row.output[i];
      }
      if (lane == 0) params.partial_state[slot] = make_float2(row.max, row.sum);
    }
  }
}

}  // namespace tandem::ops::cuda
