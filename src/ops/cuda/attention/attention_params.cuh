// Parameters and launches of the attention kernels. Plain values, made by AttentionRunner for one
// call.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "ops/cuda/device/context.cuh"

namespace tandem::ops::cuda {

// Keys of a chunk of the invariant option: partial sums begin and are merged at its multiples,
// whichever kernel computes them.
constexpr int kInvariantChunkKeys = 256;
// A sequence with more query rows is handled by the kernel that does not split keys.
constexpr int kMaxShortRows = 16;
// Rows (query rows x heads of a group) of one tensor-core tile, and of a block whose warps divide
// the keys.
constexpr int kWarpRows = 16;
// Rows per block where the warps divide the rows instead.
constexpr int kBlockRows = 64;
// Warps per block; in the invariant option the first kernel gives each its own chunk.
constexpr int kAttentionWarps = 4;
// Positions of a tile of gathered keys and values, of which prompts are computed on sm_90.
constexpr int kTileKeys = 128;
constexpr int64_t TilePairBytes(int head_dim) { return int64_t{2} * kTileKeys * head_dim * 2; }
// Largest head of the generic kernel: that of DeepSeek's latents.
constexpr int kMaxGenericHeadDim = 576;

__host__ __device__ constexpr int SkipUnit(bool invariant) {
  return invariant ? kInvariantChunkKeys : kTileKeys;
}
// Which keys before its own a row sees, as in AttentionRule: all, those of a window or of a chunk.
struct SeenKeys {
  int32_t window = 0;
  int32_t chunk = 0;

  friend bool operator==(const SeenKeys&, const SeenKeys&) = default;
  bool all() const { return window == 0 && chunk == 0; }
  __host__ __device__ int FirstKey(int position) const {
    if (chunk > 0) return position - position % chunk;
    return window == 0 || position < window ? 0 : position - window + 1;
  }
  // How many keys no row sees from `position` on, in whole units of what kernels divide keys by.
  __host__ __device__ int Skipped(int position, int unit) const {
    return FirstKey(position) / unit * unit;
  }
};

// Division of numbers from 0 on by one that the host knows: a product and a shift. Exact: with
// 2^s >= by, ceil(2^(31 + s) / by) is too large by less than 2^s / by, which adds less than 1 / by
// to the quotient of a number below 2^31.
struct Divisor {
  uint32_t multiplier = 0;
  int32_t shift = 0;

  Divisor() = default;
  explicit Divisor(int32_t by) : shift(31 + std::bit_width(static_cast<uint32_t>(by - 1))) {
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + static_cast<uint32_t>(by) - 1) /
                                       static_cast<uint32_t>(by));
  }
  __device__ int Quotient(int number) const {
    return static_cast<int>(uint64_t{static_cast<uint32_t>(number)} * multiplier >> shift);
  }
};

// What a block of a kernel that cuts keys takes at a time: chunks of one sequence's keys, for one
// kv head. A part of a plan (attention_plan.cuh). 32 bytes, a sector of the caches.
struct alignas(32) AttentionItem {
  int32_t seq = -1;  // -1: no item
  int32_t first_query = 0;
  int32_t query_rows = 0;
  int32_t context = 0;      // all keys of the sequence
  int32_t chunk_keys = 0;   // of a chunk; the sequence's last may have fewer
  int32_t first_chunk = 0;  // of the item, among those of the sequence
  // Of the sequence. One chunk needs no slot for its partial result (if invariant it has one).
  int32_t num_chunks = 0;
  int32_t first_slot = 0;
};

struct AttentionParams {
  const void* qkv = nullptr;   // [num_rows, qkv_stride]
  void* out = nullptr;         // [num_rows, out_stride]
  const void* pool = nullptr;  // the layer's first key of block 0
  int64_t qkv_stride = 0;      // elements
  int64_t out_stride = 0;

  const int32_t* row_seq = nullptr;
  const int32_t* query_start = nullptr;
  const int32_t* context_len = nullptr;
  const int32_t* block_table = nullptr;
  const int32_t* prefix_len = nullptr;  // null: causal
  int32_t num_rows = 0;
  int32_t num_seqs = 0;
  int32_t max_blocks = 0;

  int32_t num_kv_heads = 0;
  int32_t group = 0;  // query heads of a kv head
  Divisor by_group;
  int32_t head_dim = 0;
  int32_t value_dim = 0;  // head_dim but for latents
  int32_t block_tokens = 0;
  Divisor by_block_tokens;
  uint32_t block_rows = 0;  // heads of one token (head_dim elements each) in a block of all layers
  uint32_t value_rows = 0;  // from a key to its value, likewise counted; 0 for latents

  // Of scores; pools in fp8 have their keys' scale too. For tile kernels without a rule log2(e) is
  // in it.
  float scale = 1.0f;
  // As in AttentionRule. Tile kernels heed it if they are instantiated with a rule.
  float soft_cap = 0.0f;
  SeenKeys seen;
  const float* slopes = nullptr;      // [query heads]
  const float* sinks = nullptr;       // [query heads]
  const float* key_scales = nullptr;  // the layer's, of each kv head; null: all are 1
  const float* value_scales = nullptr;

  // The launches that do not cut keys take the sequences with more than above_rows rows.
  int32_t above_rows = 0;
  bool clears_padding = false;  // the first launch of a call
  // The launches that cut keys take the items of a plan: block b of a kv head those with the
  // numbers b, b + blocks, ..., up to the first without a sequence.
  const AttentionItem* items = nullptr;
  int32_t max_items = 0;
  // As AttentionPlan::is_new. Such a launch calls BeginKernelLast, so that the later ones of the
  // pass may read the plan, and the keys of earlier passes, before they call BeginKernel.
  bool is_new_plan = true;
  // How many items of a sequence are finished, for each kv head and tile of rows, in the place of
  // its first item: [max_items, num_kv_heads, tiles]. All are 0 between launches.
  uint32_t* counters = nullptr;
  // The partial result of a row of chunk c of kv head h lies in slot
  // ((item.first_slot + c) * num_kv_heads + h) * slot_rows + row.
  int32_t slot_rows = 0;
  int32_t tile_rows = 0;            // rows of a block: kWarpRows or kBlockRows
  float* partial = nullptr;         // [slots, head_dim] not yet divided by the sum
  float2* partial_state = nullptr;  // [slots] largest score, sum
  bool invariant = false;

  // For the launches that gather: tiles of kv heads from first_head on, at most max_tiles of each.
  std::byte* tiles = nullptr;
  int32_t max_tiles = 0;
  int32_t first_head = 0;
};

// Launches for one pair of element types, with a rule or without, each instantiated in a file of
// its own, for the head sizes of HasAttentionTiles. `blocks` take the short sequences' chunks of
// one kv head; the long ones are at most num_seqs, with num_rows rows together.
template <typename T, typename Stored, bool kHasRule>
void LaunchShortAttention(const Context& context, const AttentionParams& params, int blocks);
template <typename T, typename Stored, bool kHasRule>
void LaunchLongAttention(const Context& context, const AttentionParams& params, int num_rows,
                         int num_seqs);
// The same from tiles of their keys and values, which it gathers: params.max_tiles of each of
// num_heads kv heads. Only where HasWarpgroups.
template <typename T, typename Stored, bool kHasRule>
void LaunchGatheredAttention(const Context& context, const AttentionParams& params, int num_rows,
                             int num_seqs, int num_heads);
// How many blocks of the kernel for short sequences that takes tiles of `tile_rows` rows a
// multiprocessor holds at a time; 0: a block needs more memory than there is.
template <typename T, typename Stored, bool kHasRule>
int ShortBlocksPerSm(const Context& context, int head_dim, int tile_rows);
// Whether those kernels fit a block's shared memory in the invariant option; without it they always
// fit.
template <typename T, typename Stored>
bool HasInvariantTiles(const Context& context, int head_dim);
// Any head_dim up to kMaxGenericHeadDim, all rows.
template <typename T, typename Stored>
void LaunchGenericAttention(const Context& context, const AttentionParams& params);

constexpr bool HasAttentionTiles(int head_dim) { return head_dim == 64 || head_dim == 128; }

}  // namespace tandem::ops::cuda
