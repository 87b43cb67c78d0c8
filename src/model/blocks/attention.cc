#include "model/blocks/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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
          .window = static_cast<int32_t>(std::min<int64_t>(spec.window, kMaxPositions))};
}

}  // namespace

Status LoadAttention(WeightLoader& loader, int64_t layer, AttentionWeights& out) {
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kQkv, layer, out.qkv));
  if (loader.spec().layer(layer).attention.head_norm != HeadNorm::kNone) {
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kQueryNorm, layer, out.query_norm));
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kKeyNorm, layer, out.key_norm));
  }
  const AttentionSpec& spec = loader.spec().layer(layer).attention;
  if (spec.alibi_scale != 0.0) {
    const std::vector<float> slopes = AlibiSlopes(spec.num_heads, spec.alibi_scale);
    const size_t bytes = slopes.size() * sizeof(float);
    const Buffer host = Buffer::OnHost(bytes);
    if (host.data() == nullptr) return ResourceExhausted("no memory for the slopes of ALiBi");
    std::memcpy(host.data(), slopes.data(), bytes);
    TANDEM_RETURN_IF_ERROR(loader.LoadBytes(host, out.slopes));
  }
  return loader.LoadPack(WeightPack::kAttentionOut, layer, out.out);
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
  if (spec.head_norm != HeadNorm::kNone) {
    const bool together = spec.head_norm == HeadNorm::kAllHeads;
    ops.NormHeads(qkv, 0, spec.query_rows(), together ? spec.query_rows() : spec.head_dim,
                  NormOf(norm, weights.query_norm, qkv.dtype));
    ops.NormHeads(qkv, spec.query_rows(), spec.kv_rows(), together ? spec.kv_rows() : spec.head_dim,
                  NormOf(norm, weights.key_norm, qkv.dtype));
  }
  ops.QkvRopeStore(qkv, rope, batch, kv, layer);
  ops.PagedAttention(qkv, batch, kv, layer, RuleOf(spec, weights), attention);
  ops.Linear(attention, weights.out, out);
}

}  // namespace tandem
