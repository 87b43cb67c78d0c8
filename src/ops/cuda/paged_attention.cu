#include <algorithm>
#include <bit>
#include <limits>

#include "ops/cuda/attention_elements.cuh"
#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/paged_attention.cuh"

namespace tandem::ops::cuda {
namespace {

// Blocks of the tile kernels that an SM holds at a time.
constexpr int64_t kBlocksPerSm = 2;

Buffer MakeWorkspace(const Context& context) {
  const auto bytes = static_cast<size_t>(AttentionRunner::WorkspaceBytes(context.batch_invariant));
  return Buffer(AllocateWorkspace(bytes, "the workspace of attention"), bytes,
                {Device::Kind::kCuda, context.device},
                [](void* memory, size_t) { cudaFree(memory); });
}

// The longest range a sequence of the batch may have.
int64_t LongestRange(const BatchView& batch) {
  return batch.max_query_len > 0 ? batch.max_query_len : batch.num_rows;
}

}  // namespace

AttentionRunner::AttentionRunner(const Context& context)
    : context_(context), workspace_(MakeWorkspace(context)) {}

int AttentionRunner::PlanShort(const BatchView& batch, AttentionParams& params) const {
  params.short_rows = static_cast<int32_t>(std::min<int64_t>(LongestRange(batch), kMaxShortRows));
  params.slot_rows = params.short_rows * params.group;
  const bool by_warps = params.slot_rows <= kWarpRows;
  const int64_t tiles = by_warps ? 1 : CeilDiv(params.slot_rows, kBlockRows);
  const int64_t heads = params.num_kv_heads;
  const int64_t resident = kBlocksPerSm * context_.num_sms;
  // Unequal sequences are better balanced by more blocks than run at a time.
  const int64_t wanted = batch.num_seqs == 1 ? resident : 2 * resident;

  int64_t items = 0, blocks = 0;  // of one kv head
  if (context_.batch_invariant) {
    params.chunk_keys = kInvariantChunkKeys;
    params.item_chunks = by_warps ? kAttentionWarps : 1;
    const int64_t longest = int64_t{batch.max_blocks} * params.block_tokens;
    items = batch.num_seqs * CeilDiv(CeilDiv(longest, kInvariantChunkKeys), params.item_chunks);
    blocks = std::min(items, std::max(CeilDiv(wanted, heads * tiles), int64_t{1}));
  } else {
    params.target_chunks = static_cast<int32_t>(std::max(wanted / (heads * tiles), int64_t{1}));
    // Rounding a sequence's share may give it one chunk more.
    items = blocks = params.target_chunks + batch.num_seqs;
  }

  const int64_t slots = items * params.item_chunks * heads * params.slot_rows;
  const int64_t output_bytes = slots * params.head_dim * int64_t{sizeof(float)};
  if (output_bytes + slots * int64_t{sizeof(float2)} <= WorkspaceBytes(context_.batch_invariant)) {
    params.partial = workspace_.As<float>();
    params.partial_state = reinterpret_cast<float2*>(workspace_.As<std::byte>() + output_bytes);
  } else if (context_.batch_invariant) {
    // The kernel of the long sequences has the same arithmetic and needs no slots.
    params.short_rows = 0;
    return 0;
  } else {
    // So many rows keep the GPU busy uncut: one chunk a sequence needs no slots.
    params.chunk_keys = std::numeric_limits<int32_t>::max() / 2;
    blocks = batch.num_seqs;
  }
  return static_cast<int>(blocks);
}

template <typename T, typename Stored>
void AttentionRunner::Launch(const BatchView& batch, AttentionParams& params) const {
  const bool has_tiles =
      HasAttentionTiles(params.head_dim) &&
      (!params.invariant || HasInvariantTiles<T, Stored>(context_, params.head_dim));
  if (!has_tiles) {
    LaunchGenericAttention<T, Stored>(context_, params);
    return;
  }
  const int blocks = PlanShort(batch, params);
  if (blocks > 0) LaunchShortAttention<T, Stored>(context_, params, blocks);
  if (LongestRange(batch) > params.short_rows) {
    LaunchLongAttention<T, Stored>(context_, params);
  }
}

void AttentionRunner::Run(const Tensor& qkv, const BatchView& batch, const KvGroup& kv,
                          int32_t layer, float scale, const Tensor& out) {
  const bool fp8 = kv.data.dtype == DType::kF8E4M3;
  TANDEM_CHECK(out.dtype == qkv.dtype && (fp8 || kv.data.dtype == qkv.dtype), "the types differ");
  TANDEM_CHECK(fp8 || (kv.key_scales.empty() && kv.value_scales.empty()),
               "scales of keys and values are of fp8 alone");
  const int64_t num_heads = qkv.dim(1) / kv.head_dim - 2 * kv.num_kv_heads;
  TANDEM_CHECK(
      num_heads > 0 && num_heads % kv.num_kv_heads == 0 && out.dim(1) == num_heads * kv.head_dim,
      "head counts do not fit");
  TANDEM_CHECK(kv.head_dim <= kMaxGenericHeadDim, "heads of more than 512 elements");
  TANDEM_CHECK(scale > 0.0f, "the largest score must stay the largest when scaled");
  const int64_t plane_rows = int64_t{kv.num_kv_heads} * kv.block_tokens;
  const int64_t block_rows = 2 * kv.num_layers * plane_rows;
  TANDEM_CHECK(kv.num_blocks * block_rows < int64_t{std::numeric_limits<uint32_t>::max()},
               "more keys and values than 32 bits can count");
  if (batch.num_rows == 0 || batch.num_seqs == 0) return;

  AttentionParams params;
  params.qkv = qkv.data;
  params.out = out.data;
  params.pool =
      static_cast<const std::byte*>(kv.data.data) +
      2 * int64_t{layer} * plane_rows * kv.head_dim * static_cast<int64_t>(SizeOf(kv.data.dtype));
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
  params.head_dim = kv.head_dim;
  params.block_tokens = kv.block_tokens;
  const auto block_tokens = static_cast<uint32_t>(kv.block_tokens);
  if (std::has_single_bit(block_tokens)) params.block_shift = std::countr_zero(block_tokens);
  params.block_rows = static_cast<uint32_t>(block_rows);
  params.value_rows = static_cast<uint32_t>(plane_rows);
  constexpr float kLog2E = 1.44269504f;
  params.scale = scale * kLog2E;
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
