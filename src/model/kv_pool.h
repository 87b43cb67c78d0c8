// MakeKvPool: a pool for the keys and values of one model, in the layout described in ops.h, and
// its memory. The caller owns the memory and keeps it while the pool is used; the thread that loads
// makes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "ops/backend.h"
#include "tensor/buffer.h"

namespace tandem {

// Layers whose keys and values are alike in shape, and that all see every token before a row or all
// do not: they share a group of the pool.
struct KvGroupSpec {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t latent_dim = 0;  // as KvGroup
  bool windowed = false;
  std::vector<int64_t> layers;  // in their order: the i-th is layer i of the group
};
// Each layer is in one of them.
std::vector<KvGroupSpec> KvGroupsOf(const ModelSpec& spec);
// Bytes of one token over the layers that are windowed, or over the others.
int64_t KvBytesPerToken(const ModelSpec& spec, DType stored, bool windowed);
// The most tokens that a row sees in a windowed layer of any stage; 0: no layer is.
int64_t LongestWindow(const ModelSpec& spec);

// The most blocks that a pool may have. Attention on a GPU numbers the rows of a group (the head of
// one token, in keys or values) with 32 bits, and the last number means no row; block ids have 31.
// One limit for all backends.
int64_t MaxKvBlocks(const ModelSpec& spec, int32_t block_tokens);

// Calibrated scales of one group, [layers, num_kv_heads] fp32 each in the backend's memory.
struct KvScales {
  Buffer keys;
  Buffer values;
};

struct OwnedKvPool {
  std::vector<Buffer> memory;  // the backend's, zeroed: a group each, and the pool's window_of
  ops::KvPool pool;
};

// `stored`: the type of an element, the model's own, kF8E4M3 or kI8. `scales`: of each group, as
// Weights::kv_scales has them, or none; a pool of 8 bits is scaled by them and keeps views of them,
// others need none. num_window_blocks: blocks of the windowed groups; 0: as many as of the others.
// RESOURCE_EXHAUSTED as Allocate.
Result<OwnedKvPool> MakeKvPool(const ModelSpec& spec, DType stored, int64_t num_blocks,
                               int32_t block_tokens, ops::Backend& backend,
                               std::span<const KvScales> scales = {},
                               int64_t num_window_blocks = 0);

}  // namespace tandem
