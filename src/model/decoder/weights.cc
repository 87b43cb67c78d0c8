#include "model/decoder/weights.h"

#include <algorithm>
#include <utility>

#include "model/rope.h"
#include "model/weight_loader.h"

namespace tandem {
namespace {

// What a rotary table is made for.
struct RopeKind {
  RopeSpec rope;
  int64_t head_dim = 0;
  bool operator==(const RopeKind&) const = default;
};
RopeKind RopeKindOf(const AttentionSpec& attention) { return {attention.rope, attention.head_dim}; }

// The distinct rotary tables that the layers need.
std::vector<RopeKind> RopesOf(const ModelSpec& spec) {
  std::vector<RopeKind> ropes;
  for (const LayerSpec& layer : spec.layers) {
    const RopeKind kind = RopeKindOf(layer.attention);
    if (std::ranges::find(ropes, kind) == ropes.end()) ropes.push_back(kind);
  }
  return ropes;
}

Status CheckSizes(const ModelSpec& spec, const ops::Backend& backend) {
  int64_t head_dim = 0;
  for (const LayerSpec& layer : spec.layers)
    head_dim = std::max(head_dim, layer.attention.head_dim);
  return backend.CheckSizes(spec.vocab_size, head_dim);
}

Status LoadLayer(WeightLoader& loader, int64_t layer, LayerWeights& out) {
  TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kInputNorm, layer, out.input_norm));
  TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kPostNorm, layer, out.post_norm));
  TANDEM_RETURN_IF_ERROR(LoadAttention(loader, layer, out.attention));
  return LoadMlp(loader, layer, out.mlp);
}

Status LoadRope(WeightLoader& loader, const RopeKind& kind, int64_t max_positions,
                RopeBuffers& out) {
  const Shape shape{max_positions, kind.head_dim / 2};
  const auto bytes = static_cast<size_t>(shape.NumElements()) * sizeof(float);
  const Buffer cos = Buffer::OnHost(bytes);
  const Buffer sin = Buffer::OnHost(bytes);
  if (cos.data() == nullptr || sin.data() == nullptr) {
    return ResourceExhausted("no memory for rotary tables of " + std::to_string(bytes) + " bytes");
  }
  FillRopeTables(kind.rope, kind.head_dim, max_positions, cos.View(DType::kF32, shape),
                 sin.View(DType::kF32, shape));
  TANDEM_RETURN_IF_ERROR(loader.LoadBytes(cos, out.cos));
  return loader.LoadBytes(sin, out.sin);
}

Status LoadRopes(WeightLoader& loader, int64_t max_positions, Weights& out) {
  const std::vector<RopeKind> ropes = RopesOf(loader.spec());
  for (const RopeKind& kind : ropes) {
    TANDEM_RETURN_IF_ERROR(LoadRope(loader, kind, max_positions, out.ropes.emplace_back()));
  }
  for (size_t i = 0; i < out.layers.size(); ++i) {
    const RopeKind kind = RopeKindOf(loader.spec().layers[i].attention);
    out.layers[i].rope = static_cast<size_t>(std::ranges::find(ropes, kind) - ropes.begin());
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
  const Shape shape{max_positions, spec.layer(layer).attention.head_dim / 2};
  return {buffers.cos.View(DType::kF32, shape), buffers.sin.View(DType::kF32, shape)};
}

Result<std::shared_ptr<const Weights>> LoadWeights(WeightSource& source, ops::Backend& backend,
                                                   int64_t max_positions,
                                                   const LoadProgress& progress,
                                                   const AskedFormat& asked) {
  const auto report = [&progress](double share) {
    if (progress) progress(share);
  };
  auto weights = std::make_shared<Weights>();
  const ModelSpec& spec = weights->spec = source.spec();
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  TANDEM_RETURN_IF_ERROR(CheckSizes(spec, backend));
  if (max_positions < 1) return InvalidArgument("max_positions must be at least 1");

  WeightLoader loader(source, backend, asked);
  TANDEM_RETURN_IF_ERROR(loader.LoadPlain(WeightRole::kEmbedding, 0, weights->embedding));
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kHead, 0, weights->head));
  TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kFinalNorm, 0, weights->final_norm));
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

Status CheckLoadable(const ModelSpec& spec, ops::Backend& backend, const AskedFormat& asked) {
  TANDEM_RETURN_IF_ERROR(ValidateSpec(spec));
  TANDEM_RETURN_IF_ERROR(CheckSizes(spec, backend));
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
  int64_t ropes = 0;
  for (const RopeKind& kind : RopesOf(spec)) {
    ropes += int64_t{sizeof(float)} * max_positions * kind.head_dim;
  }
  return LoadedBytes(spec, backend, asked) + ropes;
}

}  // namespace tandem
