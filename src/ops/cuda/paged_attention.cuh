// AttentionRunner: attention, causal but for prefix masks, over the paged keys and values on one
// GPU, for bf16 and fp16 activations over a pool of the same type or of fp8. Owned by CudaOps; used
// by its thread. Owns its workspace, made once; Run allocates nothing and never waits.
//
// A sequence may have few rows (decode, verification: its keys are divided over the GPU) or many
// (prefill: its rows are divided). The device finds out which, so any mix of them is one call.
//
//   rows of a range, times heads of a group     kernel
//   up to 16 rows, at most 16 with the heads,   WarpAttentionKernel
//     or few sequences
//   other ranges of up to 16 rows               ChunkAttentionKernel
//   more, sm_90, not invariant: chunks told     GatherTilesKernel, then WarpgroupAttentionKernel
//     apart, or from 128 rows on, if they fit
//   other ranges of more than 16 rows           RowTileAttentionKernel
//   latents, head sizes other than 64 and 128   GenericAttentionKernel
//
// The first two cut a sequence's keys into chunks by a plan (attention_plan.cuh). Of the blocks
// that have chunks of a sequence and kv head, the last to finish merges their partial results.
//
// Each but the generic one is compiled twice: for models whose scores are subject to a rule (a cap,
// a window, ALiBi) and for all others, whose kernels know nothing of it. Keys before the windows of
// all rows of a block are not read.
//
// Batch invariance: a row's keys are taken in chunks of kInvariantChunkKeys from position 0, each
// summed from scratch in steps of 32 keys and merged in order, by every kernel alike. Without it
// the chunks are cut as the batch needs.
#pragma once

#include <array>
#include <optional>

#include "ops/cuda/attention/attention_params.cuh"
#include "ops/cuda/attention/attention_plan.cuh"
#include "ops/cuda/device/context.cuh"
#include "ops/ops.h"
#include "tensor/buffer.h"

namespace tandem::ops::cuda {

class AttentionRunner {
 public:
  explicit AttentionRunner(const Context& context);

  void BeginPass(const BatchView& batch) { plans_.BeginPass(batch); }
  void EndPass() { plans_.EndPass(); }
  // As Ops::PagedAttention. Rows without a sequence become zeros.
  void Run(const Tensor& qkv, const BatchView& batch, const KvGroup& kv, int32_t layer,
           const AttentionRule& rule, const Tensor& out);

 private:
  // Decides how the sequences of more than params.above_rows and at most `rows` rows are cut, of
  // which there should be num_seqs, and returns how many blocks a kv head they get; 0: there is no
  // room for their partial results or their plan.
  template <typename T, typename Stored, bool kHasRule>
  int PlanShort(const BatchView& batch, int32_t rows, int32_t num_seqs, AttentionParams& params);
  // How many blocks of the kernel for short sequences that takes tiles of `tile_rows` rows run at a
  // time; 0: that kernel does not fit this GPU.
  template <typename T, typename Stored, bool kHasRule>
  int64_t ResidentBlocks(int head_dim, int tile_rows);
  // Prompts from gathered keys and values, some kv heads at a time. False, and nothing enqueued:
  // the device or the invariant option has another kernel, or there is no room for one kv head's.
  // num_keys: as ChunkBounds::num_keys.
  template <typename T, typename Stored, bool kHasRule>
  bool RunGathered(AttentionParams& params, int32_t num_rows, int32_t num_seqs, int64_t num_keys);
  template <typename T, typename Stored>
  void Launch(const BatchView& batch, AttentionParams& params);
  // By the kernels of the table above but the last.
  template <typename T, typename Stored, bool kHasRule>
  void LaunchTiles(const BatchView& batch, AttentionParams& params);

  const Context context_;
  // Partial results of sequences whose keys are cut, or gathered keys and values.
  const Buffer workspace_;
  AttentionPlans plans_;
  // Of the kernels for short sequences, asked once: by types, whether there is a rule, head size,
  // rows of a block.
  std::array<std::array<std::array<std::array<std::optional<int>, 2>, 2>, 2>, 4> blocks_per_sm_;
};

}  // namespace tandem::ops::cuda
