// The attention kernels over a paged pool and their launches; included by the files that
// instantiate them, one a pair of element types.
//
//   WarpAttentionKernel   decode: at most 16 rows (query rows x heads of a group) a sequence; the
//                         warps of a block share out the keys of a chunk
//   ChunkAttentionKernel  verification: more rows, at most 16 query rows a sequence; the warps
//   share
//                         out the rows, 64 a block, and several blocks a head's keys
//   RowTileAttentionKernel  prefill: 128 rows a block (64 in the invariant option), which walks all
//                         keys
//   MergeChunksKernel     puts the chunks of a row together
//
// Query rows are packed with the heads of their group: row r of a sequence and kv head is query row
// r / group, head r % group. A key or value is fetched once for all of them.
#pragma once

#include <algorithm>

#include "ops/cuda/attention_params.cuh"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/context.cuh"
#include "ops/cuda/dependent_launch.cuh"

namespace tandem::ops::cuda {

constexpr int kWarps = kAttentionWarps;
constexpr int kBlockThreads = 32 * kWarps;
// A key that is not there: copied as zeros.
constexpr uint32_t kNoRow = ~0u;

// What a block knows of its sequence and kv head.
struct HeadView {
  __device__ HeadView(const AttentionParams& params, int sequence, int head)
      : seq(sequence),
        kv_head(head),
        first_query(params.query_start[sequence]),
        query_rows(params.query_start[sequence + 1] - first_query),
        rows(query_rows * params.group),
        context(params.context_len[sequence]),
        table(params.block_table + int64_t{sequence} * params.max_blocks) {}

  // Position of packed row r; rows behind the last count as the last.
  __device__ int Position(const AttentionParams& params, int r) const {
    return context - query_rows + min(r, rows - 1) / params.group;
  }
  // The row of the pool where position `key` has its key: block_rows and value_rows count likewise.
  __device__ uint32_t KeyRow(const AttentionParams& params, int key) const {
    const int block =
        params.block_shift >= 0 ? key >> params.block_shift : key / params.block_tokens;
    return static_cast<uint32_t>(table[block]) * params.block_rows +
           static_cast<uint32_t>(kv_head * params.block_tokens + key - block * params.block_tokens);
  }
  template <typename T>
  __device__ const T* Query(const AttentionParams& params, int r, int head_dim) const {
    return static_cast<const T*>(params.qkv) +
           (first_query + r / params.group) * params.qkv_stride +
           int64_t{kv_head * params.group + r % params.group} * head_dim;
  }
  template <typename T>
  __device__ T* Out(const AttentionParams& params, int r, int head_dim) const {
    return static_cast<T*>(params.out) + (first_query + r / params.group) * params.out_stride +
           int64_t{kv_head * params.group + r % params.group} * head_dim;
  }
  int seq, kv_head;
  int first_query, query_rows;
  int rows;  // packed
  int context;
  const int32_t* table;
};

// ---- Who does what ----

// A sequence, and which of its parts (chunks, row tiles) the caller has; seq < 0: none.
struct Part {
  int seq = -1;
  int part = 0;
  int before = 0;  // parts of the sequences before
};
// Counts count_of(seq) parts a sequence and finds the index-th. For whole warps: all lanes find the
// same.
template <typename CountOf>
__device__ inline Part FindPart(int num_seqs, int index, const CountOf& count_of) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int base = 0; base < num_seqs; base += 32) {
    const int count = base + lane < num_seqs ? count_of(base + lane) : 0;
    int end = count;  // parts of this lane's and the lanes before
    for (int distance = 1; distance < 32; distance *= 2) {
      const int lower = __shfl_up_sync(kAllLanes, end, distance);
      if (lane >= distance) end += lower;
    }
    const unsigned behind = __ballot_sync(kAllLanes, before + end > index);
    if (behind != 0) {
      const int found = __ffs(static_cast<int>(behind)) - 1;
      before += __shfl_sync(kAllLanes, end - count, found);
      return {base + found, index - before, before};
    }
    before += __shfl_sync(kAllLanes, end, 31);
  }
  return {};
}
// The sum of count_of(seq) over the first `num_seqs` sequences, to all lanes.
template <typename CountOf>
__device__ inline int CountParts(int num_seqs, const CountOf& count_of) {
  int count = 0;
  for (int seq = threadIdx.x % 32; seq < num_seqs; seq += 32) count += count_of(seq);
  return __reduce_add_sync(kAllLanes, count);
}

// How the keys of short sequences are cut. Every warp of every kernel comes to the same answer from
// the lengths on the device, so that a captured graph serves any.
class Chunks {
 public:
  __device__ explicit Chunks(const AttentionParams& params) : params_(params) {
    if (params.chunk_keys > 0) return;
    const int keys = CountParts(
        params.num_seqs, [&](int seq) { return IsShort(seq) ? params.context_len[seq] : 0; });
    share_ = max((keys + params.target_chunks - 1) / params.target_chunks, kUnit);
  }
  // The keys of one chunk of a sequence; its chunks are alike, and a multiple of what the warps of
  // a block take at a time, so that no warp has a step more than another.
  __device__ int Keys(int context) const {
    if (params_.chunk_keys > 0) return params_.chunk_keys;
    const int count = max((context + share_ / 2) / share_, 1);
    const int keys = (context + count - 1) / count;
    return max((keys + kUnit - 1) / kUnit, 1) * kUnit;
  }
  __device__ int Count(int context) const {
    const int keys = Keys(context);
    return (context + keys - 1) / keys;
  }
  // What blocks take: params.item_chunks chunks each.
  __device__ int Items(int seq) const {
    if (!IsShort(seq)) return 0;
    return (Count(params_.context_len[seq]) + params_.item_chunks - 1) / params_.item_chunks;
  }
  __device__ Part FindItem(int index) const {
    return FindPart(params_.num_seqs, index, [&](int seq) { return Items(seq); });
  }
  __device__ int ItemsBefore(int seq) const {
    return CountParts(seq, [&](int other) { return Items(other); });
  }
  // chunk: counted over the sequences.
  __device__ int64_t Slot(int64_t chunk, int kv_head, int row) const {
    return (chunk * params_.num_kv_heads + kv_head) * params_.slot_rows + row;
  }

 private:
  static constexpr int kUnit = kWarps * kStepKeys;
  __device__ bool IsShort(int seq) const {
    const int rows = params_.query_start[seq + 1] - params_.query_start[seq];
    return rows > 0 && rows <= params_.short_rows;
  }
  const AttentionParams& params_;
  int share_ = 0;  // keys that one block should have
};

// Rows that belong to no sequence stand behind all others: they become zeros, that nothing odd goes
// through the layers behind.
template <typename T>
__device__ void ClearPadding(const AttentionParams& params, int kv_head, int head_dim) {
  const int first = params.query_start[params.num_seqs];
  const int width = params.group * head_dim;
  for (int row = first; row < params.num_rows; ++row) {
    T* out = static_cast<T*>(params.out) + row * params.out_stride + int64_t{kv_head} * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[i] = FromFloat<T>(0.0f);
  }
}

// ---- Results ----

template <typename Kind>
__device__ inline void StoreResult(typename Kind::Activation* to, const RowOutput<Kind>& output,
                                   int half, float factor) {
  using T = typename Kind::Activation;
  ForEachPair<Kind>(output, half, [&](int dim, float x, float y) {
    *reinterpret_cast<uint32_t*>(to + dim) = PackPair<T>(x * factor, y * factor);
  });
}

template <typename Kind>
__device__ inline void StorePartial(float* to, float2* state_to, const RowOutput<Kind>& output,
                                    int half, float max, float sum) {
  ForEachPair<Kind>(output, half, [&](int dim, float x, float y) {
    *reinterpret_cast<float2*>(to + dim) = make_float2(x, y);
  });
  if (threadIdx.x % 4 == 0) *state_to = make_float2(max, sum);
}

// A row being put together from its chunks, by one warp: lane l holds elements l, l + 32, ...
template <int kHeadDim>
struct MergedRow {
  float max = -INFINITY;
  float sum = 0.0f;
  float output[kHeadDim / 32] = {};

  __device__ void Add(const float* part, float2 state, float scale) {
    const int lane = threadIdx.x % 32;
    const MergeFactors factors = Factors(max, state.x, scale);
    max = factors.max;
    sum = Merge(factors, sum, state.y);
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      output[i] = Merge(factors, output[i], part[lane + 32 * i]);
    }
  }
  template <typename T>
  __device__ void Store(T* to, float value_scale) const {
    const float factor = value_scale / sum;
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      to[threadIdx.x % 32 + 32 * i] = FromFloat<T>(output[i] * factor);
    }
  }
};

// ---- Few rows: warps share out the keys ----

// A warp's own queue of copies: keys and values of 32 positions in turn, two pieces under way while
// one is used. No other warp touches it, so no block-wide barrier is needed.
template <typename Kind>
class WarpQueue {
 public:
  static constexpr int kPieces = 3;
  static constexpr int kBytes = kPieces * Kind::kStepBytes;

  __device__ WarpQueue(uint32_t memory, const void* pool)
      : memory_(memory), pool_(static_cast<const std::byte*>(pool)) {}

  // Begins the copy of 32 rows of the pool; lane l says which is the l-th.
  __device__ void Push(uint32_t row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Kind::kRowPieces; ++i) {
      const int index = i * 32 + lane;
      const int place = index / Kind::kRowPieces, piece = index % Kind::kRowPieces;
      const uint32_t from = __shfl_sync(kAllLanes, row, place);
      const bool real = from != kNoRow;
      CopyPiece(memory_ + head_ + PieceOffset<Kind::kRowPieces>(place, piece),
                pool_ + (real ? uint64_t{from} * Kind::kRowBytes : 0) + piece * 16, real);
    }
    head_ = Next(head_);
  }
  // The shared address of the piece pushed the longest ago, once it is there; one group may be
  // under way still. What Pop returned last may be pushed over from now on.
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
                                  const int (&positions)[1][2], int begin, int stride, int end,
                                  RowState<1>& state, RowOutput<Kind> (&output)[1]) {
  const int lane = threadIdx.x % 32;
  const int first_position = head.Position(params, 0);
  const auto row_at = [&](int key) {
    return key + lane < end ? head.KeyRow(params, key + lane) : kNoRow;
  };
  const auto value_of = [&](uint32_t row) { return row == kNoRow ? row : row + params.value_rows; };
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
    // Looked up two steps ahead: the block table is far away too.
    const uint32_t later_row = row_at(key + 2 * stride);
    const bool more = key + stride < end;
    const uint32_t keys = queue.Pop();
    if (more) queue.Push(row);
    CommitCopies();
    float scores[1][4][4];
    Scores<Kind, 1>(queries, keys, scores);
    if (key + kStepKeys - 1 > first_position) MaskScores<1>(key, positions, scores);
    uint32_t weights[1][2][4];
    Softmax<Kind, 1>(params.scale, scores, state, output, weights);
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
__global__ void __launch_bounds__(kBlockThreads, 2)
    WarpAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  extern __shared__ __align__(128) std::byte shared[];
  BeginKernel();
  if (blockIdx.x == 0) ClearPadding<T>(params, blockIdx.y, kDim);
  const Chunks chunks(params);
  std::byte* queues = shared + kWarpRows * Kind::kQueryPieces * 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const uint32_t queries = SharedAddress(shared);
  const uint32_t queue = SharedAddress(queues) + warp * WarpQueue<Kind>::kBytes;

  for (int item = blockIdx.x;; item += gridDim.x) {
    const Part where = chunks.FindItem(item);
    if (where.seq < 0) return;
    const HeadView head(params, where.seq, blockIdx.y);
    // Nobody reads the queries of the item before any more.
    __syncthreads();
    LoadQueries<Kind>(shared, kWarpRows, threadIdx.x, kBlockThreads, [&](int r) {
      return r < head.rows ? head.Query<T>(params, r, kDim) : nullptr;
    });
    __syncthreads();
    const int positions[1][2] = {{head.Position(params, g), head.Position(params, g + 8)}};
    const int chunk_keys = chunks.Keys(head.context), num_chunks = chunks.Count(head.context);
    RowState<1> state;
    RowOutput<Kind> output[1];

    if (params.invariant) {
      // A chunk is one warp's, so that its arithmetic is that of any other kernel's chunk.
      const int chunk = where.part * kWarps + warp, begin = chunk * chunk_keys;
      if (chunk >= num_chunks) continue;
      AttendWarp<Kind>(params, head, queries, queue, positions, begin, kStepKeys,
                       min(begin + chunk_keys, head.context), state, output);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = g + 8 * half;
        if (r >= head.rows) continue;
        const int64_t slot = chunks.Slot(where.before * kWarps + chunk, head.kv_head, r);
        StorePartial<Kind>(params.partial + slot * kDim, params.partial_state + slot, output[0],
                           half, state.max[0][half], state.sum[0][half]);
      }
      continue;
    }

    const int begin = where.part * chunk_keys;
    AttendWarp<Kind>(params, head, queries, queue, positions, begin + warp * kStepKeys,
                     kWarps * kStepKeys, min(begin + chunk_keys, head.context), state, output);
    // The warps' parts are put together where the queues were.
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
    for (int r = warp; r < head.rows; r += kWarps) {
      MergedRow<kDim> row;
#pragma unroll
      for (int part = 0; part < kWarps; ++part) {
        const int place = part * kWarpRows + r;
        row.Add(parts + place * kDim, states[place], params.scale);
      }
      if (num_chunks == 1) {
        row.Store(head.Out<T>(params, r, kDim), params.value_scale);
        continue;
      }
      const int64_t slot = chunks.Slot(item, head.kv_head, r);
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        params.partial[slot * kDim + lane + 32 * i] = row.output[i];
      }
      if (lane == 0) params.partial_state[slot] = make_float2(row.max, row.sum);
    }
  }
}

// ---- Many rows: warps share out the rows ----

enum class KeyOrder {
  kChunks,     // short sequences: a block takes chunks, and stores partial results
  kAll,        // long ones: a block takes all keys in one go
  kAllMerged,  // long ones, invariant: chunk after chunk, merged as MergeChunksKernel would
};

// The block's queue of copies: 64 keys with their values a stage.
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

// What kAllMerged has of the chunks before: outputs in shared memory, each lane its own.
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
__device__ inline void AttendBlock(const AttentionParams& params, const HeadView& head, int tile,
                                   int begin, int keys_end, std::byte* shared, const Store& store) {
  using T = typename Kind::Activation;
  using Plan = BlockPlan<Kind, kTiles, kOrder, kStages>;
  using Queue = typename Plan::Queue;
  const int first_row = tile * Plan::kRows;
  const int end = min(keys_end, head.Position(params, first_row + Plan::kRows - 1) + 1);
  const int num_tiles = max(end - begin + Queue::kKeys - 1, 0) / Queue::kKeys;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int warp_row = first_row + warp * 16 * kTiles;
  const bool active = warp_row < head.rows;
  const uint32_t queries = SharedAddress(shared) + warp * 16 * kTiles * Kind::kQueryPieces * 16;
  const int first_position = head.Position(params, warp_row);
  const int last_position = head.Position(params, warp_row + 16 * kTiles - 1);
  int positions[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    positions[i][0] = head.Position(params, warp_row + 16 * i + g);
    positions[i][1] = head.Position(params, warp_row + 16 * i + g + 8);
  }

  Queue queue(shared + Plan::kQueryBytes);
  const bool looks_up = threadIdx.x < Queue::kKeys;
  const auto row_at = [&](int index) {
    const int key = begin + index * Queue::kKeys + static_cast<int>(threadIdx.x);
    return key < end ? head.KeyRow(params, key) : kNoRow;
  };
  // Nobody uses the memory for the work before any more.
  __syncthreads();
  LoadQueries<Kind>(shared, Plan::kRows, threadIdx.x, kBlockThreads, [&](int r) {
    return first_row + r < head.rows ? head.Query<T>(params, first_row + r, Kind::kHeadDim)
                                     : nullptr;
  });
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
#pragma unroll
  for (int i = 0; i < Plan::kStages - 1; ++i) {
    if (i < num_tiles) queue.Push(params, i);
    CommitCopies();
  }
  for (int i = 0; i < num_tiles; ++i) {
    WaitForCopies<Plan::kStages - 2>();
    // All have waited, so the keys are there; and all are done with the stage before, which is
    // written now.
    __syncthreads();
    if (i + Plan::kStages - 1 < num_tiles) queue.Push(params, i + Plan::kStages - 1);
    CommitCopies();
    const uint32_t later_row = looks_up ? row_at(i + Plan::kStages) : kNoRow;
#pragma unroll 1
    for (int step = 0; step < Queue::kKeys / kStepKeys; ++step) {
      const int key = begin + i * Queue::kKeys + step * kStepKeys;
      // Keys that none of the warp's rows sees change nothing.
      if (!active || key > last_position || key >= end) break;
      const uint32_t offset = step * Kind::kStepBytes;
      float scores[kTiles][4][4];
      Scores<Kind, kTiles>(queries, queue.Keys(i) + offset, scores);
      if (key + kStepKeys - 1 > first_position) MaskScores<kTiles>(key, positions, scores);
      uint32_t weights[kTiles][2][4];
      Softmax<Kind, kTiles>(params.scale, scores, state, output, weights);
      AddValues<Kind, kTiles>(queue.Values(i) + offset, weights, output);
    }
    if (looks_up) queue.SetRow(i + Plan::kStages, later_row);
    if constexpr (kOrder == KeyOrder::kAllMerged) {
      const int next_key = begin + (i + 1) * Queue::kKeys;
      if (next_key % kInvariantChunkKeys == 0 || i + 1 == num_tiles) {
        total.Add(state, output[0], params.scale);
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

// Short sequences of many packed rows. grid: (blocks, kv heads, row tiles of a sequence)
template <typename Kind, int kStages>
__global__ void __launch_bounds__(kBlockThreads, 2)
    ChunkAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  extern __shared__ __align__(128) std::byte shared[];
  BeginKernel();
  const int tile = blockIdx.z;
  if (blockIdx.x == 0 && tile == 0) ClearPadding<T>(params, blockIdx.y, kDim);
  const Chunks chunks(params);
  for (int item = blockIdx.x;; item += gridDim.x) {
    const Part where = chunks.FindItem(item);
    if (where.seq < 0) return;
    const HeadView head(params, where.seq, blockIdx.y);
    if (tile * kBlockRows >= head.rows) continue;
    const int chunk_keys = chunks.Keys(head.context), begin = where.part * chunk_keys;
    const bool whole = chunks.Count(head.context) == 1 && !params.invariant;
    AttendBlock<Kind, 1, KeyOrder::kChunks, kStages>(
        params, head, tile, begin, min(begin + chunk_keys, head.context), shared,
        [&](int r, const RowOutput<Kind>& output, int half, float max, float sum) {
          if (whole) {
            StoreResult<Kind>(head.Out<T>(params, r, kDim), output, half, params.value_scale / sum);
          } else {
            const int64_t slot = chunks.Slot(item, head.kv_head, r);
            StorePartial<Kind>(params.partial + slot * kDim, params.partial_state + slot, output,
                               half, max, sum);
          }
        });
  }
}

// Long sequences. grid: (row tiles, kv heads), the last tiles, which see the most keys, first.
template <typename Kind, int kTiles, KeyOrder kOrder>
__global__ void __launch_bounds__(kBlockThreads, 2)
    RowTileAttentionKernel(const __grid_constant__ AttentionParams params) {
  using T = typename Kind::Activation;
  constexpr int kDim = Kind::kHeadDim;
  constexpr int kRows = BlockPlan<Kind, kTiles, kOrder>::kRows;
  extern __shared__ __align__(128) std::byte shared[];
  BeginKernel();
  // Where no other kernel runs before.
  if (params.short_rows == 0 && blockIdx.x == 0) ClearPadding<T>(params, blockIdx.y, kDim);
  const Part where =
      FindPart(params.num_seqs, static_cast<int>(gridDim.x - 1 - blockIdx.x), [&](int seq) {
        const int rows = params.query_start[seq + 1] - params.query_start[seq];
        return rows > params.short_rows ? (rows * params.group + kRows - 1) / kRows : 0;
      });
  if (where.seq < 0) return;
  const HeadView head(params, where.seq, blockIdx.y);
  AttendBlock<Kind, kTiles, kOrder>(
      params, head, where.part, 0, head.context, shared,
      [&](int r, const RowOutput<Kind>& output, int half, float, float sum) {
        StoreResult<Kind>(head.Out<T>(params, r, kDim), output, half, params.value_scale / sum);
      });
}

// ---- Chunks put together ----

// A warp a row and head; chunk after chunk, so that the order does not depend on how many there
// are.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kBlockThreads)
    MergeChunksKernel(const __grid_constant__ AttentionParams params) {
  BeginKernel();
  const int num_heads = params.num_kv_heads * params.group;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const auto row = static_cast<int>(index / num_heads);
  const int query_head = static_cast<int>(index % num_heads);
  if (row >= params.num_rows) return;
  const int seq = params.row_seq[row];
  if (seq < 0) return;
  const HeadView head(params, seq, query_head / params.group);
  if (head.query_rows > params.short_rows) return;
  const Chunks chunks(params);
  const int num_chunks = chunks.Count(head.context);
  if (num_chunks == 1 && !params.invariant) return;  // it has been stored already
  const int64_t first_chunk = int64_t{chunks.ItemsBefore(seq)} * params.item_chunks;
  const int r = (row - head.first_query) * params.group + query_head % params.group;
  MergedRow<kHeadDim> merged;
#pragma unroll 4
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const int64_t slot = chunks.Slot(first_chunk + chunk, head.kv_head, r);
    merged.Add(params.partial + slot * kHeadDim, params.partial_state[slot], params.scale);
  }
  merged.Store(head.Out<T>(params, r, kHeadDim), params.value_scale);
}

// ---- Launches ----

template <typename Kernel>
void LaunchAttention(const Context& context, Kernel kernel, const AttentionParams& params,
                     dim3 grid, int shared_bytes) {
  CheckCuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
            "shared memory of attention");
  LaunchEarly(context, "PagedAttention", kernel, grid, kBlockThreads, shared_bytes, params);
}

template <typename Kind>
void LaunchShort(const Context& context, const AttentionParams& params, int blocks) {
  dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(params.num_kv_heads));
  if (params.slot_rows <= kWarpRows && WarpAttentionSharedBytes<Kind>() <= context.shared_bytes) {
    LaunchAttention(context, WarpAttentionKernel<Kind>, params, grid,
                    WarpAttentionSharedBytes<Kind>());
  } else {
    const auto launch = [&]<int kStages>() {
      using Plan = BlockPlan<Kind, 1, KeyOrder::kChunks, kStages>;
      static_assert(Plan::kRows == kBlockRows);
      grid.z = static_cast<unsigned>(CeilDiv(params.slot_rows, kBlockRows));
      LaunchAttention(context, ChunkAttentionKernel<Kind, kStages>, params, grid,
                      Plan::kSharedBytes);
    };
    // Waiting for memory is all that it does, so it has as much under way as leaves room for two
    // blocks a multiprocessor.
    constexpr int kMostBytes = BlockPlan<Kind, 1, KeyOrder::kChunks, 3>::kSharedBytes;
    if (2 * kMostBytes <= context.shared_bytes) {
      launch.template operator()<3>();
    } else {
      launch.template operator()<2>();
    }
  }
  const int64_t rows = int64_t{params.num_rows} * params.num_kv_heads * params.group;
  const dim3 merge_grid(static_cast<unsigned>(CeilDiv(rows, kWarps)));
  LaunchAttention(context, MergeChunksKernel<typename Kind::Activation, Kind::kHeadDim>, params,
                  merge_grid, 0);
}

template <typename Kind>
void LaunchLong(const Context& context, const AttentionParams& params) {
  const auto launch = [&]<int kTiles, KeyOrder kOrder>() {
    using Plan = BlockPlan<Kind, kTiles, kOrder>;
    // Each sequence may have one tile that is not full.
    const int64_t tiles =
        CeilDiv(int64_t{params.num_rows} * params.group, Plan::kRows) + params.num_seqs;
    LaunchAttention(context, RowTileAttentionKernel<Kind, kTiles, kOrder>, params,
                    dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(params.num_kv_heads)),
                    Plan::kSharedBytes);
  };
  if (params.invariant) {
    launch.template operator()<1, KeyOrder::kAllMerged>();
  } else {
    launch.template operator()<2, KeyOrder::kAll>();
  }
}

template <typename T, typename Stored, typename Launch>
void WithHeadKind(int head_dim, const Launch& launch) {
  if (head_dim == 64) {
    launch(HeadKind<T, Stored, 64>{});
  } else {
    TANDEM_CHECK(head_dim == 128, "no attention tiles for this head size");
    launch(HeadKind<T, Stored, 128>{});
  }
}

template <typename T, typename Stored>
void LaunchShortAttention(const Context& context, const AttentionParams& params, int blocks) {
  WithHeadKind<T, Stored>(params.head_dim,
                          [&](auto kind) { LaunchShort<decltype(kind)>(context, params, blocks); });
}

template <typename T, typename Stored>
void LaunchLongAttention(const Context& context, const AttentionParams& params) {
  WithHeadKind<T, Stored>(params.head_dim,
                          [&](auto kind) { LaunchLong<decltype(kind)>(context, params); });
}

template <typename T, typename Stored>
bool HasInvariantTiles(const Context& context, int head_dim) {
  bool fits = false;
  WithHeadKind<T, Stored>(head_dim, [&](auto kind) {
    using Kind = decltype(kind);
    constexpr int kBytes = BlockPlan<Kind, 1, KeyOrder::kAllMerged>::kSharedBytes;
    static_assert(WarpAttentionSharedBytes<Kind>() <= kBytes);
    fits = kBytes <= context.shared_bytes;
  });
  return fits;
}

}  // namespace tandem::ops::cuda
