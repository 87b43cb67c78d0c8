#include "model/blocks/moe.h"

namespace tandem {
namespace {

int64_t SlotsOf(const LayerSpec& layer) {
  return layer.moe.num_experts > 0 ? layer.moe.routing.experts_per_token : 0;
}
int64_t Slots(const ModelSpec& spec) { return WidestLayer(spec, SlotsOf); }
int64_t Experts(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) { return layer.moe.num_experts; });
}
int64_t SlotNeurons(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) {
    return SlotsOf(layer) * layer.moe.expert.intermediate_size;
  });
}
bool HasShared(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) {
           return layer.moe.num_experts > 0 ? layer.mlp.intermediate_size : 0;
         }) > 0;
}
bool HasSharedGate(const ModelSpec& spec) {
  return WidestLayer(spec, [](const LayerSpec& layer) {
           return int64_t{layer.moe.num_experts > 0 && layer.moe.shared_gate};
         }) > 0;
}

}  // namespace

Status LoadMoe(WeightLoader& loader, int64_t layer, MoeWeights& out) {
  const MoeSpec& spec = loader.spec().layer(layer).moe;
  TANDEM_RETURN_IF_ERROR(loader.LoadPack(WeightPack::kRouter, layer, out.router));
  if (spec.correction) {
    TANDEM_RETURN_IF_ERROR(
        loader.LoadPlain({WeightRole::kRouterCorrection, layer}, out.correction));
  }
  out.experts.activation = spec.expert.activation;
  out.experts.limit = static_cast<float>(spec.limit);
  out.experts.scales_inputs = spec.scales_inputs;
  TANDEM_RETURN_IF_ERROR(loader.LoadExperts(layer, out.experts));
  if (!spec.shared_gate) return {};
  return loader.LoadPack(WeightPack::kSharedGate, layer, out.shared_gate);
}

MoeBlock::MoeBlock(const ModelSpec& spec)
    : scores_(Experts(spec), DType::kF32),
      experts_(Slots(spec), DType::kI32),
      weights_(Slots(spec), DType::kF32),
      order_(2 * Slots(spec), DType::kI32),
      inner_(2 * SlotNeurons(spec), spec.dtype),
      activated_(SlotNeurons(spec), spec.dtype),
      outputs_(Slots(spec) * spec.hidden_size, spec.dtype),
      shared_(HasShared(spec) ? spec.hidden_size : 0, spec.dtype),
      shared_gate_(HasSharedGate(spec) ? 1 : 0, DType::kF32) {}

int64_t MoeBlock::RowBytes() const {
  int64_t bytes = 0;
  for (const RowBuffer* buffer : {&scores_, &experts_, &weights_, &order_, &inner_, &activated_,
                                  &outputs_, &shared_, &shared_gate_}) {
    bytes += buffer->RowBytes();
  }
  return bytes;
}

Status MoeBlock::Allocate(ops::Backend& backend, int64_t max_rows) {
  for (RowBuffer* buffer : {&scores_, &experts_, &weights_, &order_, &inner_, &activated_,
                            &outputs_, &shared_, &shared_gate_}) {
    TANDEM_RETURN_IF_ERROR(buffer->Allocate(backend, max_rows));
  }
  return {};
}

void MoeBlock::Run(ops::Ops& ops, const LayerSpec& layer, const MoeWeights& weights,
                   const MlpBlock& mlp, const MlpWeights& mlp_weights, const Tensor& x,
                   ops::NormedRows& next) const {
  const MoeSpec& spec = layer.moe;
  const Tensor& out = next.delta;
  next.squares = {};
  const int64_t rows = x.dim(0);
  const int64_t chosen = spec.routing.experts_per_token;
  const int64_t neurons = spec.expert.intermediate_size;
  const Tensor scores = scores_.View(rows, spec.num_experts);
  const ops::ExpertChoice choice = {experts_.View(rows, chosen), weights_.View(rows, chosen)};
  const ops::ExpertScratch scratch = {
      .order = order_.View(rows, 2 * chosen),
      .inner = inner_.View(rows * chosen, (spec.expert.gated ? 2 : 1) * neurons),
      .activated = activated_.View(rows * chosen, neurons),
      .outputs = outputs_.View(rows * chosen, out.dim(1))};
  const Tensor correction =
      spec.correction ? weights.correction.View(DType::kF32, {spec.num_experts}) : Tensor{};
  ops.Linear(x, weights.router, scores);
  ops.Route(scores, correction, spec.routing, choice);
  ops.Experts(x, choice, weights.experts, scratch, out);
  if (layer.mlp.intermediate_size == 0) return;
  const Tensor shared = shared_.View(rows);
  ops::NormedRows beside = {.delta = shared};
  mlp.Run(ops, layer.mlp, mlp_weights, x, beside);
  const Tensor gate = spec.shared_gate ? shared_gate_.View(rows) : Tensor{};
  if (spec.shared_gate) ops.Linear(x, weights.shared_gate, gate);
  ops.AddGated(out, gate, shared);
}

}  // namespace tandem
