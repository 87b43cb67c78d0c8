#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "ops/cuda/attention/attention_inputs.cuh"
#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/paged_attention.cuh"

namespace tandem::ops::cuda {
namespace {

// The invariant option has kernels of its own for prompts: they sum in chunks.
bool Gathers(const Context& context) { return HasWarpgroups(context) && !context.batch_invariant; }

Buffer MakeWorkspace(const Context& context) {
  const size_t bytes = size_t{context.batch_invariant ? 512U : Gathers(context) ? 256U : 64U} << 20;
  return Buffer(AllocateWorkspace(bytes, "the workspace of attention"), bytes,
                {Device::Kind::kCuda, context.device},
                [](void* memory, size_t) { cudaFree(memory); });
}

// The longest range of a sequence in the batch.
int32_t LongestRange(const BatchView& batch) {
  return batch.max_query_len > 0 ? batch.max_query_len : batch.num_rows;
}

}  // namespace

AttentionRunner::AttentionRunner(const Context& context)
    : context_(context), workspace_(MakeWorkspace(context)), plans_(context) {}

template <typename T, typename Stored, bool kHasRule>
int64_t AttentionRunner::ResidentBlocks(int head_dim, int tile_rows) {
  constexpr size_t kTypes =
      (std::is_same_v<T, Fp16> ? 2 : 0) + (std::is_same_v<Stored, Fp8> ? 1 : 0);
  std::optional<int>& blocks =
      blocks_per_sm_[kTypes][kHasRule][head_dim == 64 ? 0 : 1][tile_rows == kWarpRows ? 0 : 1];
  if (!blocks) blocks = ShortBlocksPerSm<T, Stored, kHasRule>(context_, head_dim, tile_rows);
  return int64_t{*blocks} * context_.num_sms;
}

template <typename T, typename Stored, bool kHasRule>
int AttentionRunner::PlanShort(const BatchView& batch, int32_t rows, int32_t num_seqs,
                               AttentionParams& params) {
  params.slot_rows = rows * params.group;
  const int64_t heads = params.num_kv_heads;
  // Chunks may turn out to be no longer than what decodes.
  const int64_t max_seqs = std::min(num_seqs + batch.chunks.num_seqs, batch.num_seqs);
  // Warps that divide a sequence's keys end sooner than warps that divide its rows, but read the
  // keys again for each 16 rows: worth it where the blocks of all sequences, heads and tiles run at
  // a time.
  const int64_t by_warps_resident = ResidentBlocks<T, Stored, kHasRule>(params.head_dim, kWarpRows);
  const int64_t warp_tiles = CeilDiv(params.slot_rows, kWarpRows);
  const bool by_warps = by_warps_resident > 0 &&
                        (warp_tiles == 1 || num_seqs * heads * warp_tiles <= by_warps_resident);
  params.tile_rows = by_warps ? kWarpRows : kBlockRows;
  const int64_t tiles = CeilDiv(params.slot_rows, params.tile_rows);
  const int64_t resident = by_warps
                               ? by_warps_resident
                               : ResidentBlocks<T, Stored, kHasRule>(params.head_dim, kBlockRows);

  // What there is room for.
  const int64_t row_bytes = params.head_dim * int64_t{sizeof(float)} + int64_t{sizeof(float2)};
  const int64_t max_chunks =
      static_cast<int64_t>(workspace_.bytes()) / (heads * params.slot_rows * row_bytes);
  CutRule rule{.above_rows = params.above_rows, .short_rows = rows, .seen = params.seen};
  int64_t chunks = max_chunks, items = 0, blocks = 0;  // of one kv head
  if (context_.batch_invariant) {
    rule.chunk_keys = kInvariantChunkKeys;
    rule.item_chunks = by_warps ? kAttentionWarps : 1;
    const int64_t longest = int64_t{batch.max_blocks} * params.block_tokens;
    items = max_seqs * CeilDiv(CeilDiv(longest, kInvariantChunkKeys), rule.item_chunks);
    chunks = items * rule.item_chunks;
    // The kernel of the long sequences has the same arithmetic and needs no slots.
    if (chunks > max_chunks) return 0;
    blocks = std::min(items, std::max(CeilDiv(2 * resident, heads * tiles), int64_t{1}));
  } else {
    // Only sequences of several chunks need slots. Cut for target_chunks they have more than one
    // and a half shares of the keys, so they take at most 4/3 target_chunks, and there is room
    // however many sequences.
    const auto with_room = [&](int64_t number) {
      return static_cast<int32_t>(
          std::max(std::min(number / (heads * tiles), max_chunks * 3 / 4), int64_t{1}));
    };
    rule.resident_chunks = with_room(resident);
    rule.target_chunks = with_room(2 * resident);
    // Rounding a sequence's share up may give it one more chunk.
    items = blocks = rule.target_chunks + max_seqs;
    // Few sequences are mostly cut into chunks that run at a time, and blocks without a chunk would
    // only keep the next kernel from starting. With many sequences each chunk has a block of its
    // own, and a block that ends makes room for another.
    if (max_seqs <= rule.resident_chunks) blocks = rule.resident_chunks;
  }
  rule.max_items = params.max_items = static_cast<int32_t>(items);
  rule.blocks = static_cast<int32_t>(blocks);
  rule.num_counters = static_cast<int32_t>(items * heads * tiles);
  const std::optional<AttentionPlan> plan = plans_.Get(rule, batch);
  if (!plan) return 0;
  params.items = plan->items;
  params.is_new_plan = plan->is_new;
  params.counters = plan->counters;
  params.partial = workspace_.As<float>();
  params.partial_state = reinterpret_cast<float2*>(
      params.partial + chunks * heads * params.slot_rows * params.head_dim);
  return static_cast<int>(blocks);
}

template <typename T, typename Stored, bool kHasRule>
bool AttentionRunner::RunGathered(AttentionParams& params, int32_t num_rows, int32_t num_seqs,
                                  int64_t num_keys) {
  if (!Gathers(context_)) return false;
  // Each sequence may have one tile that is not full.
  const int64_t tiles = num_keys / kTileKeys + num_seqs;
  const int64_t fitting =
      static_cast<int64_t>(workspace_.bytes()) / (tiles * TilePairBytes(params.head_dim));
  if (fitting == 0) return false;
  const auto passes = static_cast<int32_t>(CeilDiv(params.num_kv_heads, fitting));
  const auto heads = static_cast<int32_t>(CeilDiv(params.num_kv_heads, passes));
  params.tiles = workspace_.As<std::byte>();
  params.max_tiles = static_cast<int32_t>(tiles);
  for (params.first_head = 0; params.first_head < params.num_kv_heads; params.first_head += heads) {
    LaunchGatheredAttention<T, Stored, kHasRule>(
        context_, params, num_rows, num_seqs,
        std::min(heads, params.num_kv_heads - params.first_head));
  }
  return true;
}

template <typename T, typename Stored>
void AttentionRunner::Launch(const BatchView& batch, AttentionParams& params) {
  const bool has_tiles =
      params.value_rows > 0 && HasAttentionTiles(params.head_dim) &&
      (!params.invariant || HasInvariantTiles<T, Stored>(context_, params.head_dim));
  if (!has_tiles) return LaunchGenericAttention<T, Stored>(context_, params);
  if (params.soft_cap != 0.0f || !params.seen.all() || params.slopes != nullptr ||
      params.sinks != nullptr) {
    return LaunchTiles<T, Stored, true>(batch, params);
  }
  params.scale *= kLog2E;
  LaunchTiles<T, Stored, false>(batch, params);
}

template <typename T, typename Stored, bool kHasRule>
void AttentionRunner::LaunchTiles(const BatchView& batch, AttentionParams& params) {
  const ChunkBounds& chunks = batch.chunks;
  TANDEM_CHECK(chunks.num_seqs == 0 || chunks.num_keys > 0, "the keys of the chunks are not told");
  const int32_t longest = LongestRange(batch);
  const int32_t longest_decode = chunks.num_seqs > 0 ? chunks.max_decode_len : longest;
  // For the ranges of up to `rows` rows that no launch has taken yet, about num_seqs of them.
  const auto launch_short = [&](int32_t rows, int32_t num_seqs) {
    const int blocks = PlanShort<T, Stored, kHasRule>(batch, rows, num_seqs, params);
    if (blocks == 0) return false;
    LaunchShortAttention<T, Stored, kHasRule>(context_, params, blocks);
    params.above_rows = rows;
    params.clears_padding = false;
    return true;
  };
  params.clears_padding = true;
  // What decodes is computed as if no chunk were there; then the chunks that are as short.
  bool fits = true;
  if (longest_decode > 0) {
    fits = launch_short(std::min(longest_decode, kMaxShortRows), batch.num_seqs - chunks.num_seqs);
  }
  const bool more = std::min(longest, kMaxShortRows) > params.above_rows;
  if (fits && more && chunks.min_len <= kMaxShortRows) {
    launch_short(std::min(longest, kMaxShortRows), chunks.num_seqs);
  }
  if (longest <= params.above_rows) return;
  const bool only_chunks = params.above_rows >= longest_decode;
  const int32_t num_rows = only_chunks ? chunks.num_rows : batch.num_rows;
  const int32_t num_seqs = only_chunks ? chunks.num_seqs : batch.num_seqs;
  const int64_t num_keys = only_chunks
                               ? chunks.num_keys
                               : int64_t{batch.num_seqs} * batch.max_blocks * params.block_tokens;
  // Verifications of many drafts stay: their contexts are long for their rows, and only the widest
  // bound of them is known.
  const bool prompts = only_chunks || longest >= kTileKeys;
  if (prompts && RunGathered<T, Stored, kHasRule>(params, num_rows, num_seqs, num_keys)) return;
  LaunchLongAttention<T, Stored, kHasRule>(context_, params, num_rows, num_seqs);
}

void AttentionRunner::Run(const Tensor& qkv, const BatchView& batch, const KvGroup& kv,
                          int32_t layer, const AttentionRule& rule, const Tensor& out) {
  const bool fp8 = kv.data.dtype == DType::kF8E4M3;
  TANDEM_CHECK(out.dtype == qkv.dtype && (fp8 || kv.data.dtype == qkv.dtype), "the types differ");
  TANDEM_CHECK(fp8 || (kv.key_scales.empty() && kv.value_scales.empty()),
               "scales of keys and values are of fp8 alone");
  const int64_t num_heads = kv.query_heads(qkv.dim(1));
  TANDEM_CHECK(
      num_heads > 0 && num_heads % kv.num_kv_heads == 0 && out.dim(1) == num_heads * kv.value_dim(),
      "head counts do not fit");
  TANDEM_CHECK(kv.head_dim <= kMaxGenericHeadDim,
               "heads of more elements than the generic kernel takes");
  TANDEM_CHECK(rule.scale > 0.0f, "the largest score must stay the largest when scaled");
  const int64_t plane_rows = int64_t{kv.num_kv_heads} * kv.block_tokens;
  const int64_t block_rows = kv.planes() * kv.num_layers * plane_rows;
  TANDEM_CHECK(kv.num_blocks * block_rows < int64_t{std::numeric_limits<uint32_t>::max()},
               "more keys and values than 32 bits can count");
  if (batch.num_rows == 0 || batch.num_seqs == 0) return;

  AttentionParams params;
  params.qkv = qkv.data;
  params.out = out.data;
  params.pool = static_cast<const std::byte*>(kv.data.data) +
                kv.planes() * int64_t{layer} * plane_rows * kv.head_dim *
                    static_cast<int64_t>(SizeOf(kv.data.dtype));
  params.qkv_stride = qkv.dim(1);
  params.out_stride = out.dim(1);
  params.row_seq = batch.row_seq;
  params.query_start = batch.query_start;
  params.context_len = batch.context_len;
  params.block_table = batch.block_table;
  params.prefix_len = batch.prefix_len;
  params.num_rows = batch.num_rows;
  params.num_seqs = batch.num_seqs;
  params.max_blocks = batch.max_blocks;
  params.num_kv_heads = kv.num_kv_heads;
  params.group = static_cast<int32_t>(num_heads / kv.num_kv_heads);
  params.by_group = Divisor(params.group);
  params.head_dim = kv.head_dim;
  params.value_dim = kv.value_dim();
  params.block_tokens = kv.block_tokens;
  params.by_block_tokens = Divisor(kv.block_tokens);
  params.block_rows = static_cast<uint32_t>(block_rows);
  params.value_rows = kv.latent_dim == 0 ? static_cast<uint32_t>(plane_rows) : 0;
  params.scale = rule.scale;
  params.soft_cap = rule.soft_cap;
  params.seen = {rule.window, rule.chunk};
  params.slopes = rule.slopes;
  params.sinks = rule.sinks;
  params.key_scales = kv.key_scales_of(layer);
  params.value_scales = kv.value_scales_of(layer);
  params.invariant = context_.batch_invariant;
  WithActivation(qkv.dtype, [&](auto element) {
    using T = decltype(element);
    if (fp8) {
      Launch<T, Fp8>(batch, params);
    } else {
      Launch<T, T>(batch, params);
    }
  });
}

}  // namespace tandem::ops::cuda
