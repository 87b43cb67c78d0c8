// Shared by the attention kernels: which part of which sequence a block or warp has, computed on
// the device from the lengths there, and how a part's rows are stored or merged. Query rows are
// packed with the heads of their group: row r of a sequence and kv head is query row r / group,
// head r % group. A key or value is fetched once for all of them.
#pragma once

#include <algorithm>

#include "ops/cuda/attention/attention_inputs.cuh"
#include "ops/cuda/attention/attention_params.cuh"
#include "ops/cuda/attention/attention_tile.cuh"
#include "ops/cuda/device/context.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::ops::cuda {

constexpr int kWarps = kAttentionWarps;
constexpr int kBlockThreads = 32 * kWarps;
// A missing key: copied as zeros.
constexpr uint32_t kNoRow = ~0u;

// A block's sequence and kv head.
struct HeadView {
  __device__ HeadView(const AttentionParams& params, int sequence, int head)
      : seq(sequence),
        kv_head(head),
        first_query(params.query_start[sequence]),
        query_rows(params.query_start[sequence + 1] - first_query),
        rows(query_rows * params.group),
        context(params.context_len[sequence]),
        prefix(PrefixLen(params, sequence, context)),
        table(params.block_table + int64_t{sequence} * params.max_blocks) {}
  __device__ HeadView(const AttentionParams& params, const AttentionItem& item, int head)
      : seq(item.seq),
        kv_head(head),
        first_query(item.first_query),
        query_rows(item.query_rows),
        rows(query_rows * params.group),
        context(item.context),
        prefix(PrefixLen(params, item.seq, context)),
        table(params.block_table + int64_t{item.seq} * params.max_blocks) {}

  // The last key that packed row r sees, no less than the row before; rows after the last count as
  // the last.
  __device__ int LastKey(const AttentionParams& params, int r) const {
    return max(Position(params, r), prefix - 1);
  }
  // Of packed row r; rows after the last count as the last.
  __device__ int Position(const AttentionParams& params, int r) const {
    return context - query_rows + params.by_group.Quotient(min(r, rows - 1));
  }
  // The first key that any row sees from packed row r on. What lies before it is not read: its
  // block may hold anything by now, and a weight of 0 times a NaN would count.
  template <typename Kind>
  __device__ int FirstKey(const AttentionParams& params, int r) const {
    if constexpr (!Kind::kHasRule) return 0;
    return params.seen.FirstKey(max(Position(params, r), 0));
  }
  // How many keys before that one are left out.
  template <typename Kind>
  __device__ int Skipped(const AttentionParams& params, int r) const {
    if constexpr (!Kind::kHasRule) return 0;
    return params.seen.Skipped(max(Position(params, r), 0), SkipUnit(params.invariant));
  }
  // The first key of the pass's own rows. Those before are of earlier passes.
  __device__ int FirstNewKey() const { return context - query_rows; }
  // Where position `key` has its key. Reading the table takes long: loops look places up an
  // iteration before they need rows.
  struct KeyPlace {
    int32_t block = 0;  // of the pool
    int32_t place = 0;  // in the block
  };
  __device__ KeyPlace Find(const AttentionParams& params, int key) const {
    const int block = params.by_block_tokens.Quotient(key);
    return {table[block], key - block * params.block_tokens};
  }
  // The row of the pool with that key: block_rows and value_rows count likewise.
  __device__ uint32_t KeyRow(const AttentionParams& params, const KeyPlace& at) const {
    return static_cast<uint32_t>(at.block) * params.block_rows +
           static_cast<uint32_t>(kv_head * params.block_tokens + at.place);
  }
  __device__ uint32_t KeyRow(const AttentionParams& params, int key) const {
    return KeyRow(params, Find(params, key));
  }
  template <typename T>
  __device__ const T* Query(const AttentionParams& params, int r, int head_dim) const {
    const int query = params.by_group.Quotient(r);
    return static_cast<const T*>(params.qkv) + (first_query + query) * params.qkv_stride +
           int64_t{QueryHead(params, r, query)} * head_dim;
  }
  template <typename T>
  __device__ T* Out(const AttentionParams& params, int r, int head_dim) const {
    const int query = params.by_group.Quotient(r);
    return static_cast<T*>(params.out) + (first_query + query) * params.out_stride +
           int64_t{QueryHead(params, r, query)} * head_dim;
  }
  // What a score of packed row r loses for each position that its key is earlier.
  __device__ float Slope(const AttentionParams& params, int r) const {
    return params.slopes == nullptr
               ? 0.0f
               : params.slopes[QueryHead(params, r, params.by_group.Quotient(r))];
  }
  // What the result of packed row r is divided by: `sum` of the weights relative to `max`.
  template <typename Kind>
  __device__ float Divisor(const AttentionParams& params, int r, float max, float sum) const {
    if constexpr (!Kind::kHasRule) return sum;
    return SumWithSink(params, QueryHead(params, r, params.by_group.Quotient(r)), max, sum);
  }
  // query: r / group.
  __device__ int QueryHead(const AttentionParams& params, int r, int query) const {
    return (kv_head - query) * params.group + r;
  }
  int seq, kv_head;
  int first_query, query_rows;
  int rows;  // packed
  int context;
  int prefix;  // keys that all rows see
  const int32_t* table;
};

// ---- The rule of scores ----

// The rule for the rows of a warp's tiles, from packed row `first_row` on. Of a Kind without one it
// is nothing but the scores' factor.
template <typename Kind, int kTiles>
class RowRules {
 public:
  __device__ RowRules(const AttentionParams& params, const HeadView& head, int first_row,
                      float key_scale)
      : rule_(params, key_scale) {
    if constexpr (Kind::kHasRule) {
      const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = min(first_row + 16 * i + g + 8 * half, head.rows - 1);
          positions_[i][half] = head.Position(params, r);
          earliest_[i][half] = params.seen.FirstKey(positions_[i][half]) - positions_[i][half];
          slopes_[i][half] = head.Slope(params, r);
        }
      }
    }
  }
  // What the softmax multiplies scores by.
  __device__ float scale() const { return Kind::kHasRule ? 1.0f : rule_.scale(); }
  // Of the 32 keys from `key` on.
  __device__ void Apply(int key, float (&scores)[kTiles][4][4]) const {
    if constexpr (Kind::kHasRule) {
      const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int later = key + 8 * n + 2 * t + e % 2 - positions_[i][e / 2];
            scores[i][n][e] =
                rule_.Apply(scores[i][n][e], later, earliest_[i][e / 2], slopes_[i][e / 2]);
          }
        }
      }
    }
  }

 private:
  const ScoreRule rule_;
  int positions_[Kind::kHasRule ? kTiles : 1][2];
  int earliest_[Kind::kHasRule ? kTiles : 1][2];  // key that is seen, less the row's position
  float slopes_[Kind::kHasRule ? kTiles : 1][2];
};
// What RowRules::scale is for rows that are merged.
template <typename Kind>
__device__ inline float MergeScale(const AttentionParams& params, float key_scale) {
  return Kind::kHasRule ? 1.0f : params.scale * key_scale;
}

// ---- Division of the work ----

// A sequence, and the caller's part of it (item, tile); seq < 0: the index is beyond the last part.
struct Part {
  int seq;
  int part;
  int before;  // parts of earlier sequences
};
// Counts count_of(seq) parts per sequence and finds the index-th. For whole warps: all lanes get
// the same result.
template <typename CountOf>
__device__ inline Part FindPart(int num_seqs, int index, const CountOf& count_of) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int base = 0; base < num_seqs; base += 32) {
    const int count = base + lane < num_seqs ? count_of(base + lane) : 0;
    const int total = __reduce_add_sync(kAllLanes, count);
    if (before + total <= index) {
      before += total;
      continue;
    }
    int end = count;  // parts of this and earlier lanes
    for (int distance = 1; distance < 32; distance *= 2) {
      const int lower = __shfl_up_sync(kAllLanes, end, distance);
      if (lane >= distance) end += lower;
    }
    const unsigned after = __ballot_sync(kAllLanes, before + end > index);
    const int found = __ffs(static_cast<int>(after)) - 1;
    before += __shfl_sync(kAllLanes, end - count, found);
    return {base + found, index - before, before};
  }
  return {-1, 0, before};
}
// chunk: counted over all that have slots.
__device__ inline int64_t SlotOf(const AttentionParams& params, int chunk, int kv_head, int row) {
  return (int64_t{chunk} * params.num_kv_heads + kv_head) * params.slot_rows + row;
}

// The sum of count_of(seq) over the first `num_seqs` sequences, to all lanes.
template <typename CountOf>
__device__ inline int CountParts(int num_seqs, const CountOf& count_of) {
  int count = 0;
  for (int seq = threadIdx.x % 32; seq < num_seqs; seq += 32) count += count_of(seq);
  return __reduce_add_sync(kAllLanes, count);
}

// Rows that belong to no sequence come after all others: they become zeros, so that later layers
// see no odd values.
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

// A row's result, of which each of kLanes neighbouring lanes has kPacks times kPack elements side
// by side.
template <int kHeadDim, int kLanes>
struct MergedRow {
  static constexpr int kPack = std::min(kHeadDim / kLanes, 4);
  static constexpr int kPacks = kHeadDim / (kLanes * kPack);
  using Part = Pack<float, kPack>;
  float max = -INFINITY;
  float sum = 0.0f;
  Part output[kPacks] = {};

  // The first element of the lane's p-th pack.
  static __device__ int Own(int p) {
    return (p * kLanes + static_cast<int>(threadIdx.x) % kLanes) * kPack;
  }
  __device__ void StorePart(float* to, float2* state_to) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) StorePack(to + Own(p), output[p]);
    if (threadIdx.x % kLanes == 0) *state_to = make_float2(max, sum);
  }
  template <typename T>
  __device__ void Store(T* to, float factor) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      Pack<T, kPack> result;
#pragma unroll
      for (int i = 0; i < kPack; ++i) result.at[i] = FromFloat<T>(output[p].at[i] * factor);
      StorePack(to + Own(p), result);
    }
  }
};

// Merges `count` parts of a row one after another, by kLanes lanes; a warp merges several rows,
// which have equally many parts. Part c is parts[c * next_part][kHeadDim] with states[c *
// next_part]; kAtOnce (a power of two up to kLanes) are loaded at a time, and a lane computes the
// factors of one of them.
template <int kHeadDim, int kLanes, int kAtOnce>
__device__ inline MergedRow<kHeadDim, kLanes> MergeParts(const float* parts, const float2* states,
                                                         int64_t next_part, int count,
                                                         float scale) {
  using Row = MergedRow<kHeadDim, kLanes>;
  const int lane = static_cast<int>(threadIdx.x) % kAtOnce;
  Row row;
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    float2 state = make_float2(-INFINITY, 0.0f);
    if (first + lane < count) state = states[(first + lane) * next_part];
    typename Row::Part loaded[kAtOnce][Row::kPacks];
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      if (first + c >= count) break;
      const float* const part = parts + (first + c) * next_part * kHeadDim;
#pragma unroll
      for (int p = 0; p < Row::kPacks; ++p) {
        loaded[c][p] = LoadPack<float, Row::kPack>(part + Row::Own(p));
      }
    }
    // The largest score up to this lane's part, then before it.
    float max = state.x;
#pragma unroll
    for (int distance = 1; distance < kAtOnce; distance *= 2) {
      const float lower = __shfl_up_sync(kAllLanes, max, distance, kAtOnce);
      if (lane >= distance) max = fmaxf(max, lower);
    }
    const float of_earlier = __shfl_up_sync(kAllLanes, max, 1, kAtOnce);
    const MergeFactors own =
        Factors(lane == 0 ? row.max : fmaxf(row.max, of_earlier), state.x, scale);
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      if (first + c >= count) break;
      const MergeFactors factors = {0.0f, __shfl_sync(kAllLanes, own.total, c, kAtOnce),
                                    __shfl_sync(kAllLanes, own.part, c, kAtOnce)};
      row.sum = Merge(factors, row.sum, __shfl_sync(kAllLanes, state.y, c, kAtOnce));
#pragma unroll
      for (int p = 0; p < Row::kPacks; ++p) {
#pragma unroll
        for (int i = 0; i < Row::kPack; ++i) {
          row.output[p].at[i] = Merge(factors, row.output[p].at[i], loaded[c][p].at[i]);
        }
      }
    }
    row.max = __shfl_sync(kAllLanes, own.max, kAtOnce - 1, kAtOnce);
  }
  return row;
}

// Merges `count` parts of each of `rows` rows, and calls use(r, row) for each row, with all lanes
// that have a share of it. Part c of row r is parts[c * next_part + r][kHeadDim]. For all threads
// of a block.
template <int kHeadDim, typename Use>
__device__ inline void MergeRows(const float* parts, const float2* states, int64_t next_part,
                                 int count, int rows, float scale, const Use& use) {
  // A turn waits for memory once for kAtOnce parts. More rows or parts at a time would need more
  // registers than the loop over keys.
  constexpr int kLanes = 16, kAtOnce = 4;
  const int own = static_cast<int>(threadIdx.x) / kLanes;
#pragma unroll 1
  for (int first = 0; first < rows; first += kBlockThreads / kLanes) {
    // Whole warps merge; lanes without a row take the last once more.
    const int r = min(first + own, rows - 1);
    const auto row = MergeParts<kHeadDim, kLanes, kAtOnce>(parts + int64_t{r} * kHeadDim,
                                                           states + r, next_part, count, scale);
    if (first + own < rows) use(r, row);
  }
}

// ---- Merging the chunks of a sequence ----

// Whether the calling block is the last to finish one of the num_items items of a sequence, for its
// kv head and tile of rows; then all partial results of those rows can be read. For all threads of
// a block, after they have stored the item's partial results.
__device__ inline bool FinishesRows(const AttentionParams& params, int first_item, int num_items,
                                    int kv_head, int tile) {
  __syncthreads();
  if (num_items == 1) return true;
  bool last = false;
  if (threadIdx.x == 0) {
    const auto others = static_cast<uint32_t>(num_items) - 1;
    uint32_t* const counter =
        params.counters + (int64_t{first_item} * params.num_kv_heads + kv_head) * gridDim.z + tile;
    uint32_t finished;
    // Publishes what the block has stored (the barrier before puts that first) and, if all others
    // have come, makes theirs visible. The last one's increment wraps to 0 for the next layer.
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;\n"
                 : "=r"(finished)
                 : "l"(__cvta_generic_to_global(counter)), "r"(others)
                 : "memory");
    last = finished == others;
  }
  return __syncthreads_or(last) != 0;
}

// Merges the chunks of packed rows [begin, end): chunk after chunk, so that the result does not
// depend on which block was the last, nor, if invariant, on how many chunks an item has. For all
// threads of a block.
template <typename Kind>
__device__ inline void MergeChunks(const AttentionParams& params, const HeadView& head,
                                   const AttentionItem& item, int begin, int end, float scale,
                                   float value_scale) {
  const int64_t first_slot = SlotOf(params, item.first_slot, head.kv_head, begin);
  MergeRows<Kind::kHeadDim>(
      params.partial + first_slot * Kind::kHeadDim, params.partial_state + first_slot,
      int64_t{params.num_kv_heads} * params.slot_rows, item.num_chunks, end - begin, scale,
      [&](int r, const auto& row) {
        r += begin;
        row.Store(head.Out<typename Kind::Activation>(params, r, Kind::kHeadDim),
                  value_scale / head.Divisor<Kind>(params, r, row.max, row.sum));
      });
}

}  // namespace tandem::ops::cuda
