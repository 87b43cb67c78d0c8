// Tiny Llama models with random weights, for tests that need the real decoder; and a draft that
// agrees with its target more or less often, made by mixing other weights into the target's.
#pragma once

#include <memory>

#include "model/decoder/weights.h"
#include "ops/backend.h"
#include "runtime/engine.h"
#include "tensor/buffer.h"

namespace tandem {

// 2 layers, 2 heads over 1 key-value head, 96 tokens.
ModelSpec TinyLlamaSpec(DType dtype, int64_t max_positions);

// A model of the seed, or the part of it that a rank has; `noise` is the share of another model
// mixed in (0: none).
EngineModel MakeTinyLlama(const ModelSpec& spec, uint32_t seed, float noise, ops::Backend& backend,
                          const RankPlace& place = {});

}  // namespace tandem
