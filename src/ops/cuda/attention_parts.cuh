// Shared by the attention kernels: which part of which sequence a block or warp has, computed on
// the device from the lengths there, and how a part's rows are stored or merged. Query rows are
// packed with the heads of their group: row r of a sequence and kv head is query row r / group,
// head r % group. A key or value is fetched once for all of them.
#pragma once

#include <algorithm>

#include "ops/cuda/attention_inputs.cuh"
#include "ops/cuda/attention_params.cuh"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/context.cuh"
#include "ops/cuda/dependent_launch.cuh"

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

  // The last key that packed row r sees, no less than the row before; rows after the last count as
  // the last.
  __device__ int LastKey(const AttentionParams& params, int r) const {
    return max(context - query_rows + params.by_group.Quotient(min(r, rows - 1)), prefix - 1);
  }
  // The row of the pool where position `key` has its key: block_rows and value_rows count likewise.
  __device__ uint32_t KeyRow(const AttentionParams& params, int key) const {
    const int block = params.by_block_tokens.Quotient(key);
    return static_cast<uint32_t>(table[block]) * params.block_rows +
           static_cast<uint32_t>(kv_head * params.block_tokens + key - block * params.block_tokens);
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

// ---- Division of the work ----

// A sequence, and the caller's part of it (chunk, row tile); seq < 0: none.
struct Part {
  int seq = -1;
  int part = 0;
  int before = 0;  // parts of earlier sequences
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
  return {};
}
// Whether the kernels that cut keys take a sequence of this many rows.
__device__ inline bool IsShort(const AttentionParams& params, int rows) {
  return rows > params.above_rows && rows <= params.short_rows;
}
// chunk: counted over the sequences whose chunks have slots.
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

// number / by for numbers below 2^21, rounded down, the same in all warps: (number + 1/2) / by is
// at least 1 / (2 by) away from a whole number, and the rounding errors are smaller.
__device__ inline int SmallQuotient(int number, int by) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(static_cast<float>(by)));
  return static_cast<int>(__fmul_rn(static_cast<float>(number) + 0.5f, inverse));
}

// The division of short sequences' keys. Every warp of every kernel computes the same answer from
// the lengths on the device, so that a captured graph serves any lengths.
class Chunks {
 public:
  __device__ explicit Chunks(const AttentionParams& params) : params_(params) {
    if (params.chunk_keys > 0) return;
    const int keys = CountParts(
        params.num_seqs, [&](int seq) { return IsShort(seq) ? params.context_len[seq] : 0; });
    share_ = max((keys + params.target_chunks - 1) / params.target_chunks, kUnit);
  }
  // The keys of one chunk of a sequence; its chunks are equal, and a multiple of what the warps of
  // a block take at a time, so that no warp has more steps than another.
  __device__ int Keys(int context) const { return UnitsOfChunk(context) * kUnit; }
  __device__ int Count(int context) const {
    const int units = UnitsOfChunk(context);
    return SmallQuotient(Units(context) + units - 1, units);
  }
  // What blocks take: params.item_chunks chunks each.
  __device__ int Items(int seq) const {
    if (!IsShort(seq)) return 0;
    const int chunks = Count(params_.context_len[seq]);
    return SmallQuotient(chunks + params_.item_chunks - 1, params_.item_chunks);
  }
  __device__ Part FindItem(int index) const {
    return FindPart(params_.num_seqs, index, [&](int seq) { return Items(seq); });
  }
  // How the part's sequence is cut; told to the kernel that merges by the block that has its first
  // part. A sequence of one chunk needs no slot, and the others, which have more than one and a
  // half shares of the keys, take at most 4/3 target_chunks.
  __device__ SequenceCut CutOf(const Part& where, const HeadView& head) const {
    SequenceCut cut;
    cut.num_chunks = Count(head.context);
    if (params_.invariant) {
      cut.first_chunk = where.before * params_.item_chunks;
    } else if (cut.num_chunks > 1) {
      cut.first_chunk = CountParts(where.seq, [&](int other) {
        const int items = Items(other);
        return items > 1 ? items : 0;
      });
    }
    if (where.part == 0 && head.kv_head == 0 && threadIdx.x == 0) params_.cuts[where.seq] = cut;
    return cut;
  }

 private:
  static constexpr int kUnit = kWarps * kStepKeys;
  static_assert(kInvariantChunkKeys % kUnit == 0);
  __device__ static int Units(int context) {
    return static_cast<int>((static_cast<unsigned>(context) + kUnit - 1) / kUnit);
  }
  __device__ int UnitsOfChunk(int context) const {
    if (params_.chunk_keys > 0) return params_.chunk_keys / kUnit;
    const int count = max(SmallQuotient(context + share_ / 2, share_), 1);
    return max(SmallQuotient(Units(context) + count - 1, count), 1);
  }
  __device__ bool IsShort(int seq) const {
    return cuda::IsShort(params_, params_.query_start[seq + 1] - params_.query_start[seq]);
  }
  const AttentionParams& params_;
  int share_ = 0;  // keys per block
};

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

// A row being merged from its chunks by one warp: lane l holds elements l, l + 32, ...
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

}  // namespace tandem::ops::cuda
