#include "model/blocks/attention.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

int64_t WidestQkv(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) { return layer.attention.qkv_rows(); });
}

int64_t WidestQuery(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) { return layer.attention.query_rows(); });
}

}  // namespace

Status LoadAttention(WeightLoader& loader, int64_t layer, AttentionWeights& out) {
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kQkv, layer, out.qkv));
  return loader.LoadPack(WeightPack::kAttentionOut, layer, out.out);
}

AttentionBlock::AttentionBlock(const ModelSpec& spec)
    : qkv_(WidestQkv(spec), spec.dtype), attention_(WidestQuery(spec), spec.dtype) {}

Status AttentionBlock::Allocate(ops::Backend& backend, int64_t max_rows) {
  TANDEM_RETURN_IF_ERROR(qkv_.Allocate(backend, max_rows));
  return attention_.Allocate(backend, max_rows);
}

void AttentionBlock::Run(ops::Ops& ops, const AttentionSpec& spec, const AttentionWeights& weights,
                         const AttentionContext& context, const ops::NormedRows& x,
                         const Tensor& out) const {
  const auto& [batch, kv, layer, rope] = context;
  const float scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  const Tensor qkv = qkv_.View(batch.num_rows, spec.qkv_rows());
  const Tensor attention = attention_.View(batch.num_rows, spec.query_rows());
  ops.NormLinear(x, weights.qkv, qkv);
  ops.QkvRopeStore(qkv, rope, batch, kv, layer);
  ops.PagedAttention(qkv, batch, kv, layer, scale, attention);
  ops.Linear(attention, weights.out, out);
}

}  // namespace tandem
