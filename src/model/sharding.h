// How weights are shared out over tensor-parallel ranks, as the role table's column says: shapes
// and first rows of each rank's part. Pure values and functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/weight_roles.h"

namespace tandem {

struct Sharding {
  int64_t tp_size = 1;
  bool parallel_embedding = false;  // the embedding is split too
  int64_t embedding_dim = 0;        // along the vocabulary (0) or the hidden size (1)
};

// The split must come out even: heads, intermediate size and (or replicated) key-value heads.
Status CheckSharding(const ModelSpec& spec, const Sharding& sharding);

enum class Split : uint8_t { kNone, kRows, kCols };
Split SplitOf(const Sharding& sharding, WeightRole role, WeightPart part);

// Shape of a rank's part.
Shape PartShape(const ModelSpec& spec, const Sharding& sharding, const WeightId& id);
// First row (or column) of a rank's part in the whole. Key-value heads fewer than ranks are
// repeated; the head's last rows may lie after the vocabulary and are zero.
int64_t PartBegin(const ModelSpec& spec, const Sharding& sharding, const WeightId& id,
                  int64_t rank);

}  // namespace tandem
