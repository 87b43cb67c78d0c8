#include "model/blocks/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/rope.h"

namespace tandem {
namespace {

int64_t WidestQkv(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) { return layer.attention.qkv_rows(); });
}

int64_t WidestQuery(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) { return layer.attention.query_rows(); });
}

ops::AttentionRule RuleOf(const AttentionSpec& spec, const AttentionWeights& weights) {
  const double scale =
      spec.scale > 0 ? spec.scale : 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  return {.scale = static_cast<float>(scale),
          .soft_cap = static_cast<float>(spec.soft_cap),
          .slopes = weights.slopes.As<float>(),
          .window = static_cast<int32_t>(std::min<int64_t>(spec.window, kMaxPositions)),
          .chunk = static_cast<int32_t>(std::min<int64_t>(spec.chunk, kMaxPositions)),
          .sinks = weights.sinks.As<float>()};
}

}  // namespace

Status LoadAttention(WeightLoader& loader, int64_t layer, AttentionWeights& out) {
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kQkv, layer, out.qkv));
  if (!WeightParts(loader.spec(), WeightRole::kQueryNorm, layer).empty()) {
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kQueryNorm, layer, out.query_norm));
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kKeyNorm, layer, out.key_norm));
  }
  const AttentionSpec& spec = loader.spec().layer(layer).attention;
  if (spec.alibi_scale != 0.0) {
    TANDEM_RETURN_IF_ERROR(
        loader.LoadFloats(AlibiSlopes(spec.num_heads, spec.alibi_scale), out.slopes));
  }
  if (spec.sinks) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> sinks,
                            loader.ReadFloats({WeightRole::kSinks, layer}));
    TANDEM_RETURN_IF_ERROR(loader.LoadFloats(sinks, out.sinks));
  }
  return loader.LoadPack(WeightPack::kAttentionOut, layer, out.out);
}

int64_t AttentionTableBytes(const ModelSpec& spec, int64_t layer) {
  const AttentionSpec& attention = spec.layer(layer).attention;
  const int64_t heads = attention.num_heads;
  int64_t bytes = 0;
  if (attention.alibi_scale != 0.0) bytes += heads * int64_t{sizeof(float)};
  // They are kept wider than they are stored.
  if (attention.sinks) bytes += heads * static_cast<int64_t>(sizeof(float) - SizeOf(spec.dtype));
  return bytes;
}

AttentionBlock::AttentionBlock(const ModelSpec& spec)
    : qkv_(WidestQkv(spec), spec.dtype), attention_(WidestQuery(spec), spec.dtype) {}

Status AttentionBlock::Allocate(ops::Backend& backend, int64_t max_rows) {
  TANDEM_RETURN_IF_ERROR(qkv_.Allocate(backend, max_rows));
  return attention_.Allocate(backend, max_rows);
}

void AttentionBlock::Run(ops::Ops& ops, const AttentionSpec& spec, const AttentionWeights& weights,
                         const AttentionContext& context, const BlockInput& x,
                         const Tensor& out) const {
  const auto& [batch, kv, layer, rope, norm] = context;
  const Tensor qkv = qkv_.View(batch.num_rows, spec.qkv_rows());
  const Tensor attention = attention_.View(batch.num_rows, spec.query_rows());
  RunLinear(ops, x, weights.qkv, qkv);
  if (spec.head_norm == HeadNorm::kNone) {
    ops.QkvRopeStore(qkv, rope, batch, kv, layer);
  } else {
    const auto columns = [&](int64_t count, const NormWeights& norm_weights) {
      const bool together = spec.head_norm == HeadNorm::kAllHeads;
      return ops::HeadNorms::Columns{.count = count,
                                     .width = together ? count : spec.head_dim,
                                     .norm = NormOf(norm, norm_weights, qkv.dtype)};
    };
    ops.NormQkvRopeStore(
        qkv,
        {columns(spec.query_rows(), weights.query_norm), columns(spec.kv_rows(), weights.key_norm)},
        rope, batch, kv, layer);
  }
  ops.PagedAttention(qkv, batch, kv, layer, RuleOf(spec, weights), attention);
  ops.Linear(attention, weights.out, out);
}

}  // namespace tandem
