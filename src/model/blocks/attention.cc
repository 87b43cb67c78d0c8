#include "model/blocks/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/rope.h"

namespace tandem {
namespace {

int64_t WidestQkv(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) {
    return std::max(layer.attention.qkv_rows(), layer.attention.out_columns());
  });
}

// Of a layer with latents alone; 0 for others.
template <typename Columns>
int64_t WidestLatent(const ModelSpec& spec, const Columns& columns) {
  return WidestLayer(spec, [&](const LayerSpec& layer) {
    return layer.attention.has_latents() ? columns(layer.attention) : int64_t{0};
  });
}

bool NormsOverRanks(const ModelSpec& spec) {
  return spec.place.ranks > 1 && std::ranges::any_of(spec.layers, [](const LayerSpec& layer) {
           return layer.attention.head_norm == HeadNorm::kAllHeads;
         });
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

void RunLinearRopeStore(ops::Ops& ops, const BlockInput& x, const ops::LinearWeight& weight,
                        const Tensor& qkv, const AttentionContext& context) {
  const auto& [batch, kv, layer, rope, norm, ranks] = context;
  if (const auto* normed = std::get_if<ops::NormedRows>(&x)) {
    ops.NormLinearRopeStore(*normed, weight, qkv, rope, batch, kv, layer);
  } else {
    ops.LinearRopeStore(std::get<Tensor>(x), weight, qkv, rope, batch, kv, layer);
  }
}

Status LoadLatent(WeightLoader& loader, int64_t layer, LatentWeights& out) {
  if (loader.spec().layer(layer).attention.latent.query_rank > 0) {
    TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kQueryDown, layer, out.query_down));
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kQueryDownNorm, layer, out.query_norm));
  }
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kLatent, layer, out.down));
  TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kLatentNorm, layer, out.norm));
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kLatentKey, layer, out.keys));
  return loader.LoadPack(WeightPack::kLatentValue, layer, out.values);
}

}  // namespace

Status LoadAttention(WeightLoader& loader, int64_t layer, AttentionWeights& out) {
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kQkv, layer, out.qkv));
  if (!WeightParts(loader.spec(), WeightRole::kQueryNorm, layer).empty()) {
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kQueryNorm, layer, out.query_norm));
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kKeyNorm, layer, out.key_norm));
  }
  const AttentionSpec& spec = loader.spec().layer(layer).attention;
  if (spec.has_latents()) TANDEM_RETURN_IF_ERROR(LoadLatent(loader, layer, out.latent));
  if (spec.alibi_scale != 0.0) {
    const RankPlace& place = loader.spec().place;
    const std::vector<float> slopes = AlibiSlopes(place.ranks * spec.num_heads, spec.alibi_scale);
    TANDEM_RETURN_IF_ERROR(loader.LoadFloats(
        std::span(slopes).subspan(static_cast<size_t>(place.rank * spec.num_heads),
                                  static_cast<size_t>(spec.num_heads)),
        out.slopes));
  }
  if (spec.sinks) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> sinks,
                            ReadFloats(loader.source(), {WeightRole::kSinks, layer}));
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
    : qkv_(WidestQkv(spec), spec.dtype),
      attention_(
          WidestLayer(spec,
                      [](const LayerSpec& layer) { return layer.attention.attended_columns(); }),
          spec.dtype),
      query_latents_(
          WidestLatent(spec, [](const AttentionSpec& layer) { return layer.latent.query_rank; }),
          spec.dtype),
      latents_(WidestLatent(spec, [](const AttentionSpec& layer) { return layer.head_dim; }),
               spec.dtype),
      queries_(
          WidestLatent(spec, [](const AttentionSpec& layer) { return layer.attending_columns(); }),
          spec.dtype),
      head_squares_(NormsOverRanks(spec) ? 2 : 0, DType::kF32) {}

int64_t AttentionBlock::RowBytes() const {
  return qkv_.RowBytes() + attention_.RowBytes() + query_latents_.RowBytes() + latents_.RowBytes() +
         queries_.RowBytes() + head_squares_.RowBytes();
}

Status AttentionBlock::Allocate(ops::Backend& backend, int64_t max_rows) {
  for (RowBuffer* buffer :
       {&qkv_, &attention_, &query_latents_, &latents_, &queries_, &head_squares_}) {
    TANDEM_RETURN_IF_ERROR(buffer->Allocate(backend, max_rows));
  }
  return {};
}

void AttentionBlock::Run(ops::Ops& ops, const AttentionSpec& spec, const AttentionWeights& weights,
                         const AttentionContext& context, const BlockInput& x,
                         ops::NormedRows& next) const {
  if (spec.has_latents()) return RunLatent(ops, spec, weights, context, x, next);
  const auto& [batch, kv, layer, rope, norm, ranks] = context;
  const Tensor qkv = qkv_.View(batch.num_rows, spec.qkv_rows());
  const Tensor attention = attention_.View(batch.num_rows, spec.attended_columns());
  if (spec.head_norm == HeadNorm::kNone) {
    RunLinearRopeStore(ops, x, weights.qkv, qkv, context);
  } else {
    RunLinear(ops, x, weights.qkv, qkv);
    const bool together = spec.head_norm == HeadNorm::kAllHeads;
    const auto columns = [&](int64_t count, const NormWeights& norm_weights) {
      return ops::HeadNorms::Columns{.count = count,
                                     .width = together ? count : spec.head_dim,
                                     .norm = NormOf(norm, norm_weights, qkv.dtype)};
    };
    const ops::HeadNorms norms = {columns(spec.query_rows(), weights.query_norm),
                                  columns(spec.kv_rows(), weights.key_norm)};
    if (together && ranks != nullptr) {
      // Ranks that have the same keys each count them, in the sums and in their number.
      const Tensor squares = head_squares_.View(batch.num_rows);
      ops.SumHeadSquares(qkv, norms, squares);
      ranks->AllReduce(squares);
      ops.NormHeadsBySums(qkv, norms, squares, ranks->size());
      ops.QkvRopeStore(qkv, rope, batch, kv, layer);
    } else {
      ops.NormQkvRopeStore(qkv, norms, rope, batch, kv, layer);
    }
  }
  ops.PagedAttention(qkv, batch, kv, layer, RuleOf(spec, weights), attention);
  ops.LinearAdd(attention, weights.out, next);
}

void AttentionBlock::RunLatent(ops::Ops& ops, const AttentionSpec& spec,
                               const AttentionWeights& weights, const AttentionContext& context,
                               const BlockInput& x, ops::NormedRows& next) const {
  const ops::BatchView& batch = context.batch;
  const LatentSpec& latent = spec.latent;
  const NormSpec norm = {.epsilon = latent.norm_epsilon};
  const auto norm_first = [&](const Tensor& rows, int64_t columns, const NormWeights& weight) {
    ops.NormHeads(rows, 0, columns, columns, NormOf(norm, weight, rows.dtype));
  };
  const Tensor rows = RowsOf(ops, x);
  Tensor query_in = rows;
  if (latent.query_rank > 0) {
    query_in = query_latents_.View(batch.num_rows, latent.query_rank);
    ops.Linear(rows, weights.latent.query_down, query_in);
    norm_first(query_in, latent.query_rank, weights.latent.query_norm);
  }
  const Tensor q = qkv_.View(batch.num_rows, spec.query_rows());
  ops.Linear(query_in, weights.qkv, q);
  const Tensor latents = latents_.View(batch.num_rows, spec.head_dim);
  ops.Linear(rows, weights.latent.down, latents);
  norm_first(latents, latent.rank, weights.latent.norm);

  const Tensor queries = queries_.View(batch.num_rows, spec.attending_columns());
  ops.HeadLinear({q, 0, spec.query_dim(), latent.key_dim}, weights.latent.keys,
                 {queries, 0, spec.head_dim, latent.rank});
  ops.LatentRopeStore(q, latents, context.rope, batch, context.kv, context.layer, queries);
  const Tensor attention = attention_.View(batch.num_rows, spec.attended_columns());
  ops.PagedAttention(queries, batch, context.kv, context.layer, RuleOf(spec, weights), attention);
  const Tensor values = qkv_.View(batch.num_rows, spec.out_columns());
  ops.HeadLinear({attention, 0, latent.rank, latent.rank}, weights.latent.values,
                 {values, 0, latent.value_dim, latent.value_dim});
  ops.LinearAdd(values, weights.out, next);
}

}  // namespace tandem
