// MakeKvPool: a pool for the keys and values of one model, laid out as ops.h says, and the memory
// it is a view of. The caller owns the memory and keeps it for as long as the pool is used; it is
// made by the thread that loads.
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
