// How weights are split over tensor-parallel ranks, according to the role table: shapes and first
// rows of each rank's part. Pure values and functions.
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

// The split must be even: heads, intermediate size and key-value heads (unless replicated).
Status CheckSharding(const ModelSpec& spec, const Sharding& sharding);

enum class Split : uint8_t { kNone, kRows, kCols };
Split SplitOf(const ModelSpec& spec, const Sharding& sharding, const WeightId& id);

// Shape of a rank's part.
Shape PartShape(const ModelSpec& spec, const Sharding& sharding, const WeightId& id);
// First row (or column) of a rank's part in the whole. With fewer key-value heads than ranks they
// are repeated; the head's last rows may lie past the vocabulary and are zero.
int64_t PartBegin(const ModelSpec& spec, const Sharding& sharding, const WeightId& id,
                  int64_t rank);

}  // namespace tandem
