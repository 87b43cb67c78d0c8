#include "model/decoder/weights.h"

#include <algorithm>
#include <utility>

#include "model/arranged_source.h"
#include "model/rope.h"
#include "model/weight_loader.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// What a layer's tables of positions are made of.
struct TableSpec {
  RopeSpec rope;
  QueryGrowth growth;
  bool operator==(const TableSpec&) const = default;
};
TableSpec TableOf(const LayerSpec& layer) { return {layer.attention.rope, layer.attention.growth}; }

// The distinct ones that the layers need.
std::vector<TableSpec> TablesOf(const ModelSpec& spec) {
  std::vector<TableSpec> tables;
  for (const LayerSpec& layer : spec.layers) {
    const TableSpec table = TableOf(layer);
    if (std::ranges::find(tables, table) == tables.end()) tables.push_back(table);
  }
  return tables;
}

Status CheckComputable(const ModelSpec& spec, const ops::Backend& backend) {
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  TANDEM_RETURN_IF_ERROR(CheckArrangeable(spec));
  int64_t head_dim = 0;
  for (const LayerSpec& layer : spec.layers) {
    head_dim = std::max(head_dim, layer.attention.head_dim);
  }
  return backend.CheckSizes(spec.vocab_size, head_dim);
}

Status LoadLayer(WeightLoader& loader, int64_t layer, LayerWeights& out) {
  for (const auto& [role, norm] :
       {std::pair(WeightRole::kInputNorm, &out.input_norm),
        std::pair(WeightRole::kAttentionOutNorm, &out.attention_out_norm),
        std::pair(WeightRole::kPostNorm, &out.post_norm),
        std::pair(WeightRole::kMlpOutNorm, &out.mlp_out_norm)}) {
    if (WeightParts(loader.spec(), role, layer).empty()) continue;
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, role, layer, *norm));
  }
  TANDEM_RETURN_IF_ERROR(LoadAttention(loader, layer, out.attention));
  const LayerSpec& spec = loader.spec().layer(layer);
  if (spec.moe.num_experts > 0) TANDEM_RETURN_IF_ERROR(LoadMoe(loader, layer, out.moe));
  if (spec.mlp.intermediate_size == 0) return {};
  return LoadMlp(loader, layer, out.mlp);
}

// The scale has the type of the embedding, as in the families that have one.
Status LoadEmbedding(WeightSource& source, WeightLoader& loader, Weights& out) {
  const ModelSpec& spec = loader.spec();
  if (spec.position_rows > 0) {
    TANDEM_RETURN_IF_ERROR(loader.LoadPlain({WeightRole::kPositions}, out.positions));
  }
  if (spec.second_position_rows > 0) {
    TANDEM_RETURN_IF_ERROR(loader.LoadPlain({WeightRole::kSecondPositions}, out.second_positions));
  }
  if (spec.embedding_norm) {
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kEmbeddingNorm, 0, out.embedding_norm));
  }
  if (spec.embedding_scale == 1.0) {
    return loader.LoadPlain({WeightRole::kEmbedding}, out.embedding);
  }
  TANDEM_ASSIGN_OR_RETURN(const Tensor stored, source.Get({WeightRole::kEmbedding}));
  const Buffer scaled = Buffer::OnHost(static_cast<size_t>(stored.NumBytes()));
  if (scaled.data() == nullptr) return ResourceExhausted("no memory for the scaled embedding");
  ScaleElements(stored, spec.embedding_scale, scaled.View(stored.dtype, stored.shape));
  return loader.LoadBytes(scaled, out.embedding);
}

Status LoadTable(WeightLoader& loader, const TableSpec& table, int64_t max_positions,
                 RopeBuffers& out) {
  const RopeSpec& rope = table.rope;
  if (const std::vector<float> factors = QueryFactors(table.growth, max_positions);
      !factors.empty()) {
    TANDEM_RETURN_IF_ERROR(loader.LoadFloats(factors, out.query_factors));
  }
  if (rope.dim == 0) return {};
  const Shape shape{NumRopeSteps(rope, max_positions) * max_positions, rope.dim / 2};
  const auto bytes = static_cast<size_t>(shape.NumElements()) * sizeof(float);
  const Buffer cos = Buffer::OnHost(bytes);
  const Buffer sin = Buffer::OnHost(bytes);
  if (cos.data() == nullptr || sin.data() == nullptr) {
    return ResourceExhausted("no memory for rotary tables of " + std::to_string(bytes) + " bytes");
  }
  FillRopeTables(rope, max_positions, cos.View(DType::kF32, shape), sin.View(DType::kF32, shape));
  TANDEM_RETURN_IF_ERROR(loader.LoadBytes(cos, out.cos));
  return loader.LoadBytes(sin, out.sin);
}

Status LoadRopes(WeightLoader& loader, int64_t max_positions, Weights& out) {
  const std::vector<TableSpec> tables = TablesOf(out.spec);
  for (const TableSpec& table : tables) {
    TANDEM_RETURN_IF_ERROR(LoadTable(loader, table, max_positions, out.ropes.emplace_back()));
  }
  for (size_t i = 0; i < out.layers.size(); ++i) {
    const TableSpec table = TableOf(out.spec.layers[i]);
    out.layers[i].rope = static_cast<size_t>(std::ranges::find(tables, table) - tables.begin());
  }
  out.max_positions = max_positions;
  return {};
}

Status LoadCacheScales(WeightLoader& loader, Weights& out) {
  if (!loader.spec().cache_scales) return {};
  for (const KvGroupSpec& group : KvGroupsOf(loader.spec())) {
    KvScales& scales = out.kv_scales.emplace_back();
    TANDEM_RETURN_IF_ERROR(loader.LoadCacheScales(WeightRole::kKey, group.layers, scales.keys));
    TANDEM_RETURN_IF_ERROR(loader.LoadCacheScales(WeightRole::kValue, group.layers, scales.values));
  }
  return {};
}

}  // namespace

ops::RopeTable Weights::rope(int64_t layer) const {
  const RopeBuffers& buffers = ropes[layers[static_cast<size_t>(layer)].rope];
  const RopeSpec& rope = spec.layer(layer).attention.rope;
  const Shape shape{NumRopeSteps(rope, max_positions) * max_positions, rope.dim / 2};
  ops::RopeTable table;
  table.halves = rope.halves;
  if (shape.NumElements() > 0) {
    table.cos = buffers.cos.View(DType::kF32, shape);
    table.sin = buffers.sin.View(DType::kF32, shape);
  }
  if (buffers.query_factors.bytes() > 0) {
    table.query_factors = buffers.query_factors.View(DType::kF32, {max_positions});
  }
  return table;
}

Result<std::shared_ptr<const Weights>> LoadWeights(WeightSource& stored, ops::Backend& backend,
                                                   int64_t max_positions,
                                                   const LoadProgress& progress,
                                                   const AskedFormat& asked) {
  const auto report = [&progress](double share) {
    if (progress) progress(share);
  };
  auto weights = std::make_shared<Weights>();
  const ModelSpec& spec = weights->spec = stored.spec();
  TANDEM_RETURN_IF_ERROR(CheckComputable(spec, backend));
  if (max_positions < 1) return InvalidArgument("max_positions must be at least 1");

  ArrangedSource source(stored);
  WeightLoader loader(source, backend, asked);
  if (spec.place.is_first_stage()) {
    TANDEM_RETURN_IF_ERROR(LoadEmbedding(source, loader, *weights));
  }
  if (spec.place.is_last_stage()) {
    TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kHead, 0, weights->head));
    TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kFinalNorm, 0, weights->final_norm));
  }
  weights->layers.resize(static_cast<size_t>(spec.num_layers()));
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    report(static_cast<double>(layer) / static_cast<double>(spec.num_layers()));
    TANDEM_RETURN_IF_ERROR(LoadLayer(loader, layer, weights->layers[static_cast<size_t>(layer)]));
  }
  TANDEM_RETURN_IF_ERROR(LoadCacheScales(loader, *weights));
  TANDEM_RETURN_IF_ERROR(source.Finish());
  TANDEM_RETURN_IF_ERROR(LoadRopes(loader, max_positions, *weights));
  weights->bytes = loader.bytes();
  weights->step_bytes = loader.step_bytes();
  report(1.0);
  return std::shared_ptr<const Weights>(std::move(weights));
}

ModelSpec OneLayer(const ModelSpec& spec, int64_t layer) {
  ModelSpec one = spec;
  one.layers = {spec.layer(layer)};
  one.exceptions.clear();
  return one;
}

Result<std::shared_ptr<const Weights>> LoadEmbeddingAlone(WeightSource& source,
                                                          ops::Backend& backend) {
  auto weights = std::make_shared<Weights>();
  weights->spec = source.spec();
  weights->spec.layers.clear();
  WeightLoader loader(source, backend, {});
  TANDEM_RETURN_IF_ERROR(LoadEmbedding(source, loader, *weights));
  weights->bytes = loader.bytes();
  return std::shared_ptr<const Weights>(std::move(weights));
}

Result<std::shared_ptr<const Weights>> LoadLayerAlone(WeightSource& stored, ops::Backend& backend,
                                                      int64_t layer, int64_t max_positions) {
  auto weights = std::make_shared<Weights>();
  weights->spec = OneLayer(stored.spec(), layer);
  weights->spec.quantization = {};
  ArrangedSource source(stored);
  WeightLoader loader(source, backend, {.layers = QuantScheme{}});
  TANDEM_RETURN_IF_ERROR(LoadLayer(loader, layer, weights->layers.emplace_back()));
  TANDEM_RETURN_IF_ERROR(LoadRopes(loader, max_positions, *weights));
  weights->bytes = loader.bytes();
  return std::shared_ptr<const Weights>(std::move(weights));
}

Status CheckLoadable(const ModelSpec& spec, ops::Backend& backend, const AskedFormat& asked) {
  TANDEM_RETURN_IF_ERROR(CheckComputable(spec, backend));
  for (const WeightId& id : StoredWeights(spec)) {
    const WeightRow& row = RowOf(id.role);
    if (row.pack == WeightPack::kNone || id.part != WeightPart::kWeight) continue;
    const WeightFormat stored{spec.dtype, SchemeOf(spec, id.role, id.layer)};
    TANDEM_RETURN_IF_ERROR(
        backend.CheckFormat(stored, KeptFormat(spec, id.role, id.layer, backend, asked)));
  }
  return {};
}

int64_t WeightBytes(const ModelSpec& spec, const ops::Backend& backend, int64_t max_positions,
                    const AskedFormat& asked) {
  int64_t tables = 0;
  for (const TableSpec& table : TablesOf(spec)) {
    const bool grows = table.growth.kind != QueryGrowth::Kind::kNone;
    const int64_t turns = NumRopeSteps(table.rope, max_positions) * table.rope.dim;
    tables += int64_t{sizeof(float)} * max_positions * (turns + (grows ? 1 : 0));
  }
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    tables += AttentionTableBytes(spec, layer);
  }
  return LoadedBytes(spec, backend, asked) + tables;
}

}  // namespace tandem
