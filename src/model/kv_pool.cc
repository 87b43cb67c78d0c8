#include "model/kv_pool.h"

namespace tandem {

Result<OwnedKvPool> MakeKvPool(const ModelSpec& spec, DType stored, int64_t num_blocks,
                               int32_t block_tokens, ops::Backend& backend) {
  OwnedKvPool owned;
  ops::KvPool& pool = owned.pool;
  pool.num_blocks = num_blocks;
  const AttentionSpec& attention = spec.layers.front().attention;
  pool.num_layers = static_cast<int32_t>(spec.num_layers());
  pool.num_kv_heads = static_cast<int32_t>(attention.num_kv_heads);
  pool.block_tokens = block_tokens;
  pool.head_dim = static_cast<int32_t>(attention.head_dim);
  const int64_t elements = num_blocks * pool.elements_per_block();
  TANDEM_ASSIGN_OR_RETURN(owned.memory,
                          backend.Allocate(static_cast<size_t>(elements) * SizeOf(stored)));
  pool.data = owned.memory.View(stored, {elements});
  return owned;
}

}  // namespace tandem
