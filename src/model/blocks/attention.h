// The attention block: computes q, k and v of the rows, stores keys and values in the cache,
// attends over the cache, and projects back to the residual's width. One block serves all layers of
// a decoder: it owns their workspace; a layer brings its spec and weights. Used by the decoder's
// thread.
#pragma once

#include "comm/communicator.h"
#include "model/blocks/block_input.h"
#include "model/blocks/norm.h"
#include "model/blocks/row_buffer.h"
#include "model/spec.h"
#include "model/weight_loader.h"
#include "ops/backend.h"

namespace tandem {

// Of AttentionSpec::latent; empty without.
struct LatentWeights {
  ops::LinearWeight query_down;  // [query_rank, hidden]; empty where queries are of the row
  NormWeights query_norm;
  ops::LinearWeight down;  // [rank + what turns, hidden]
  NormWeights norm;
  ops::LinearWeight keys;    // of each head [rank, key_dim]
  ops::LinearWeight values;  // of each head [value_dim, rank]
};

struct AttentionWeights {
  ops::LinearWeight qkv;  // [qkv_rows, hidden or query_rank]: rows of q, then of k, then of v
  ops::LinearWeight out;  // [hidden, out_columns]
  LatentWeights latent;
  NormWeights query_norm;
  NormWeights key_norm;
  Buffer slopes;  // of ALiBi, [num_heads] fp32; empty without
  Buffer sinks;   // [num_heads] fp32; empty without
};

Status LoadAttention(WeightLoader& loader, int64_t layer, AttentionWeights& out);
// Bytes that LoadAttention takes beyond those of the stored weights.
int64_t AttentionTableBytes(const ModelSpec& spec, int64_t layer);

// Attention's inputs in addition to the rows, for one layer.
struct AttentionContext {
  const ops::BatchView& batch;
  const ops::KvGroup& kv;  // where the layer's keys and values are
  int32_t layer;           // of the group
  ops::RopeTable rope;
  const NormSpec& norm;           // of queries and keys
  Communicator* ranks = nullptr;  // that have the layer's other heads; null: this one has all
};

class AttentionBlock {
 public:
  explicit AttentionBlock(const ModelSpec& spec);

  int64_t RowBytes() const;
  Status Allocate(ops::Backend& backend, int64_t max_rows);
  // next: the norm of the stream to which what attention adds goes, as Ops::LinearAdd; its delta
  // may be the input's.
  void Run(ops::Ops& ops, const AttentionSpec& spec, const AttentionWeights& weights,
           const AttentionContext& context, const BlockInput& x, ops::NormedRows& next) const;

 private:
  void RunLatent(ops::Ops& ops, const AttentionSpec& spec, const AttentionWeights& weights,
                 const AttentionContext& context, const BlockInput& x, ops::NormedRows& next) const;

  // As wide as the widest layer needs.
  RowBuffer qkv_;        // [rows, qkv_rows]; later what value weights make of latents
  RowBuffer attention_;  // [rows, heads of values or latents]
  // Of layers with latents.
  RowBuffer query_latents_;  // [rows, query_rank]
  RowBuffer latents_;        // [rows, rank + what turns]
  RowBuffer queries_;        // [rows, heads of that width]
  RowBuffer head_squares_;   // [rows, 2] fp32, where ranks norm all heads together
};

}  // namespace tandem
