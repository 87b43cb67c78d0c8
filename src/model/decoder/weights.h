// Weights: the packed tensors of one model on one backend. Loaded once, immutable afterwards,
// shared by every executor of the model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "model/blocks/attention.h"
#include "model/blocks/mlp.h"
#include "model/blocks/moe.h"
#include "model/blocks/norm.h"
#include "model/kv_pool.h"
#include "model/spec.h"
#include "model/weight_loader.h"
#include "model/weight_source.h"
#include "ops/backend.h"

namespace tandem {

// Of the norms those that the layer's Residual has.
struct LayerWeights {
  NormWeights input_norm;
  AttentionWeights attention;
  NormWeights attention_out_norm;
  NormWeights post_norm;
  MlpWeights mlp;  // of no rows where there are only experts
  MoeWeights moe;
  NormWeights mlp_out_norm;
  size_t rope = 0;  // index into the tables of positions
};

// As ops::RopeTable: cos and sin, [NumRopeSteps * max_positions, rope.dim / 2] fp32 each, and the
// factors of queries, [max_positions] fp32; each may be empty.
struct RopeBuffers {
  Buffer cos;
  Buffer sin;
  Buffer query_factors;
};

// Of a rank those that its part of the model has (RankPlace).
struct Weights {
  ModelSpec spec;
  Buffer embedding;         // [vocab, hidden], times the spec's embedding_scale
  Buffer positions;         // [position_rows, hidden]; empty without
  Buffer second_positions;  // [second_position_rows, hidden]; empty without
  NormWeights embedding_norm;
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  ops::LinearWeight head;           // [vocab, hidden]
  std::vector<RopeBuffers> ropes;   // one for each way of turning and scaling that layers have
  std::vector<KvScales> kv_scales;  // of each of KvGroupsOf; empty where the model has none
  int64_t max_positions = 0;        // rows of the rotary tables
  int64_t bytes = 0;                // all of the above in the backend's memory
  int64_t step_bytes = 0;           // read in one decode step: the products' weights and scales

  ops::RopeTable rope(int64_t layer) const;
};

// Called after each layer with the share done in [0, 1].
using LoadProgress = std::function<void(double)>;
// `max_positions`: rows of the rotary tables, the longest context that will be served.
Result<std::shared_ptr<const Weights>> LoadWeights(WeightSource& source, ops::Backend& backend,
                                                   int64_t max_positions,
                                                   const LoadProgress& progress = {},
                                                   const AskedFormat& asked = {});
// Parts of a model for a decoder that runs it a part at a time (Decoder::Embed, RunLayers), as its
// products are stored widened: the embedding with all that is added to it, in a model of no layers;
// one layer, in a model of that layer alone. Everything else is empty.
Result<std::shared_ptr<const Weights>> LoadEmbeddingAlone(WeightSource& source,
                                                          ops::Backend& backend);
Result<std::shared_ptr<const Weights>> LoadLayerAlone(WeightSource& source, ops::Backend& backend,
                                                      int64_t layer, int64_t max_positions);
// A model of one layer of another one, and of its positions.
ModelSpec OneLayer(const ModelSpec& spec, int64_t layer);
// Errors that LoadWeights would return without reading a weight: an inconsistent spec, or a type
// that the backend cannot store.
Status CheckLoadable(const ModelSpec& spec, ops::Backend& backend, const AskedFormat& asked = {});
// Bytes that LoadWeights will take in the backend's memory, for the memory plan.
int64_t WeightBytes(const ModelSpec& spec, const ops::Backend& backend, int64_t max_positions,
                    const AskedFormat& asked = {});

}  // namespace tandem
