// MakeKvPool: a pool for the keys and values of one model, in the layout described in ops.h, and
// its memory. The caller owns the memory and keeps it while the pool is used; the thread that loads
// makes it.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/spec.h"
#include "ops/backend.h"
#include "tensor/buffer.h"

namespace tandem {

struct OwnedKvPool {
  Buffer memory;  // the backend's, zeroed
  ops::KvPool pool;
};

// `stored`: the type of an element, the model's own or kF8E4M3. RESOURCE_EXHAUSTED as Allocate.
Result<OwnedKvPool> MakeKvPool(const ModelSpec& spec, DType stored, int64_t num_blocks,
                               int32_t block_tokens, ops::Backend& backend);

}  // namespace tandem
