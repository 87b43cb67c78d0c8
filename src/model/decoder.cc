#include "model/decoder.h"

#include <array>
#include <cmath>
#include <utility>

namespace tandem {
namespace {

// Elements of one row of each workspace buffer, in the order of Decoder's members.
struct RowSizes {
  int64_t hidden;
  int64_t qkv;
  int64_t attention;
  int64_t gate_up;
  int64_t activated;
};

RowSizes RowSizesOf(const ModelSpec& spec) {
  return {spec.hidden_size, spec.qkv_rows(), spec.num_heads * spec.head_dim,
          2 * spec.intermediate_size, spec.intermediate_size};
}

}  // namespace

Decoder::Decoder(std::shared_ptr<const Weights> weights, ops::Backend& backend,
                 Heartbeat* heartbeat)
    : weights_(std::move(weights)),
      backend_(backend),
      heartbeat_(heartbeat),
      rope_(weights_->rope()) {}

int64_t Decoder::WorkspaceBytes(const ModelSpec& spec, int32_t max_rows, int32_t max_logits_rows) {
  const RowSizes sizes = RowSizesOf(spec);
  const int64_t row =
      3 * sizes.hidden + sizes.qkv + sizes.attention + sizes.gate_up + sizes.activated;
  const auto element = static_cast<int64_t>(SizeOf(spec.dtype));
  const int64_t logits_row =
      2 * sizes.hidden * element + spec.vocab_size * static_cast<int64_t>(sizeof(float));
  return max_rows * row * element + max_logits_rows * logits_row;
}

Status Decoder::AllocateWorkspace(int32_t max_rows, int32_t max_logits_rows) {
  const RowSizes sizes = RowSizesOf(spec());
  const auto element = static_cast<int64_t>(SizeOf(spec().dtype));
  const auto allocate = [&](int64_t rows, int64_t row_bytes, Buffer& out) -> Status {
    TANDEM_ASSIGN_OR_RETURN(out, backend_.Allocate(static_cast<size_t>(rows * row_bytes)));
    return {};
  };
  for (Buffer* buffer : {&residual_, &normed_, &delta_}) {
    TANDEM_RETURN_IF_ERROR(allocate(max_rows, sizes.hidden * element, *buffer));
  }
  TANDEM_RETURN_IF_ERROR(allocate(max_rows, sizes.qkv * element, qkv_));
  TANDEM_RETURN_IF_ERROR(allocate(max_rows, sizes.attention * element, attention_));
  TANDEM_RETURN_IF_ERROR(allocate(max_rows, sizes.gate_up * element, gate_up_));
  TANDEM_RETURN_IF_ERROR(allocate(max_rows, sizes.activated * element, activated_));
  for (Buffer* buffer : {&gathered_, &gathered_delta_}) {
    TANDEM_RETURN_IF_ERROR(allocate(max_logits_rows, sizes.hidden * element, *buffer));
  }
  TANDEM_RETURN_IF_ERROR(
      allocate(max_logits_rows, spec().vocab_size * int64_t{sizeof(float)}, logits_));
  max_rows_ = max_rows;
  max_logits_rows_ = max_logits_rows;
  return {};
}

Result<std::unique_ptr<Decoder>> Decoder::Create(std::shared_ptr<const Weights> weights,
                                                 ops::Backend& backend, int32_t max_rows,
                                                 int32_t max_logits_rows, Heartbeat* heartbeat) {
  if (max_rows < 1 || max_logits_rows < 1) {
    return InvalidArgument("a decoder needs room for at least one row and one row of logits");
  }
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(weights), backend, heartbeat));
  TANDEM_RETURN_IF_ERROR(decoder->AllocateWorkspace(max_rows, max_logits_rows));
  return decoder;
}

void Decoder::RunLayer(int32_t layer, const ops::BatchView& batch, const ops::KvPool& pool) {
  ops::Ops& ops = backend_.ops();
  const ModelSpec& spec = weights_->spec;
  const LayerWeights& weights = weights_->layers[static_cast<size_t>(layer)];
  const RowSizes sizes = RowSizesOf(spec);
  const int64_t rows = batch.num_rows;
  const auto epsilon = static_cast<float>(spec.norm_epsilon);
  const float scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));

  const Tensor residual = residual_.View(spec.dtype, {rows, sizes.hidden});
  const Tensor normed = normed_.View(spec.dtype, {rows, sizes.hidden});
  const Tensor delta = delta_.View(spec.dtype, {rows, sizes.hidden});
  const Tensor qkv = qkv_.View(spec.dtype, {rows, sizes.qkv});
  const Tensor attention = attention_.View(spec.dtype, {rows, sizes.attention});

  // Nothing has been added before the first layer.
  ops.AddRmsNorm(residual, layer == 0 ? Tensor{} : delta,
                 weights.input_norm.View(spec.dtype, {sizes.hidden}), epsilon, normed);
  ops.Linear(normed, weights.qkv, qkv);
  ops.QkvRopeStore(qkv, rope_, batch, pool, layer);
  ops.PagedAttention(qkv, batch, pool, layer, scale, attention);
  ops.Linear(attention, weights.out, delta);
  ops.AddRmsNorm(residual, delta, weights.post_norm.View(spec.dtype, {sizes.hidden}), epsilon,
                 normed);
  ops.GatedMlp(normed, weights.gate_up, weights.down,
               gate_up_.View(spec.dtype, {rows, sizes.gate_up}),
               activated_.View(spec.dtype, {rows, sizes.activated}), delta);
}

Tensor Decoder::RunHead(const ops::BatchView& batch) {
  ops::Ops& ops = backend_.ops();
  const ModelSpec& spec = weights_->spec;
  const int64_t hidden = spec.hidden_size;
  const Tensor logits = logits_.View(DType::kF32, {batch.num_logits, spec.vocab_size});
  if (batch.num_logits == 0) return logits;
  const Tensor gathered = gathered_.View(spec.dtype, {batch.num_logits, hidden});
  const Tensor delta = gathered_delta_.View(spec.dtype, {batch.num_logits, hidden});
  const Shape all{batch.num_rows, hidden};
  ops.GatherRows(residual_.View(spec.dtype, all), batch.logits_rows, gathered);
  ops.GatherRows(delta_.View(spec.dtype, all), batch.logits_rows, delta);
  // normed_ is free by now; a row of it is a row of logits.
  const Tensor normed = normed_.View(spec.dtype, {batch.num_logits, hidden});
  ops.AddRmsNorm(gathered, delta, weights_->final_norm.View(spec.dtype, {hidden}),
                 static_cast<float>(spec.norm_epsilon), normed);
  ops.Linear(normed, weights_->head, logits);
  return logits;
}

Tensor Decoder::Forward(const ops::BatchView& batch, const ops::KvPool& pool) {
  const ModelSpec& spec = weights_->spec;
  TANDEM_CHECK(batch.num_rows >= 1 && batch.num_rows <= max_rows_,
               std::to_string(batch.num_rows) + " rows, room for " + std::to_string(max_rows_));
  TANDEM_CHECK(batch.num_logits <= max_logits_rows_ && batch.num_logits <= batch.num_rows,
               std::to_string(batch.num_logits) + " rows of logits, room for " +
                   std::to_string(max_logits_rows_));
  TANDEM_CHECK(pool.num_layers == spec.num_layers && pool.num_kv_heads == spec.num_kv_heads &&
                   pool.head_dim == spec.head_dim,
               "the pool was made for another model");
  backend_.ops().Embed(weights_->embedding.View(spec.dtype, {spec.vocab_size, spec.hidden_size}),
                       batch.tokens,
                       residual_.View(spec.dtype, {batch.num_rows, spec.hidden_size}));
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    RunLayer(layer, batch, pool);
    if (heartbeat_ != nullptr) heartbeat_->Beat();
  }
  return RunHead(batch);
}

}  // namespace tandem
