#include "model/decoder/decoder.h"

#include <algorithm>
#include <utility>

#include "ops/batch_slice.h"

namespace tandem {
namespace {

// A later stage begins as soon as the one before has sent a slice. Slices have this many rows or
// more on average, as fewer would not repay reading the weights again; and s slices on n stages
// take (s + n - 1) / (s n) of the time of one slice, so that more than a few for each stage gain
// little.
constexpr int32_t kMeanSliceRows = 512;
constexpr int32_t kMostSlicesOfStage = 4;
constexpr int32_t kSliceMultiple = 128;  // rows of a tile of products

bool FitsPool(const ModelSpec& spec, const ops::KvPool& pool) {
  if (pool.layers.size() != spec.layers.size()) return false;
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const AttentionSpec& attention = spec.layers[layer].attention;
    const ops::KvGroup& group = pool.groups[static_cast<size_t>(pool.layers[layer].group)];
    if (group.num_kv_heads != attention.num_kv_heads || group.head_dim != attention.head_dim ||
        group.latent_dim != attention.latent.rank) {
      return false;
    }
  }
  return true;
}

int64_t HeadColumns(const ModelSpec& spec) {
  return spec.place.is_last_stage() ? spec.hidden_size : 0;
}

// Of the residual stream.
int64_t StreamColumns(const ModelSpec& spec) {
  return spec.place.has_layers() ? spec.hidden_size : 0;
}

// A model of one stage may be whole, or split, on every stage of the engine.
bool IsPlace(const RankPlace& place, Communicator* ranks) {
  if (ranks == nullptr) return place.is_whole();
  if (!place.has_layers()) return place.apart;
  Communicator& stage = ranks->stage();
  if (place.ranks > 1 && (place.ranks != stage.size() || place.rank != stage.rank())) return false;
  return !place.shares_logits() ||
         ranks->rank() == place.first + place.stage * place.ranks + place.rank;
}

// Whether the rank adds up with others what it computes of each layer.
bool IsSplit(const RankPlace& place) { return place.ranks > 1 && place.has_layers(); }

bool HasParallelLayers(const ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const LayerSpec& layer) {
    return layer.residual == Residual::kParallel || layer.residual == Residual::kParallelNorms;
  });
}

bool HasPreNormLayers(const ModelSpec& spec) {
  return std::ranges::any_of(
      spec.layers, [](const LayerSpec& layer) { return layer.residual == Residual::kPreNorm; });
}

// A layer's norms before its attention and before its MLP, among those of a pass.
int64_t NormOfAttention(int64_t layer) { return 2 * layer; }
int64_t NormOfMlp(int64_t layer) { return 2 * layer + 1; }

}  // namespace

Decoder::Workspace::Workspace(const ModelSpec& spec)
    : residual(StreamColumns(spec), spec.dtype),
      normed(StreamColumns(spec), spec.dtype),
      delta(StreamColumns(spec), spec.dtype),
      num_norms(HasPreNormLayers(spec) ? NormOfAttention(spec.num_layers()) : 0),
      squares(ops::kMaxAddedRows, DType::kI64),
      second_delta(HasParallelLayers(spec) ? spec.hidden_size : 0, spec.dtype),
      slice(spec.place.stages > 1 && spec.place.has_layers() ? 3 : 0, DType::kI32),
      attention(spec),
      mlp(spec),
      moe(spec),
      gathered(HeadColumns(spec), spec.dtype),
      gathered_delta(HeadColumns(spec), spec.dtype),
      head_rows(spec.place.ranks > 1 && spec.place.is_last_stage() ? spec.vocab_rows() : 0,
                DType::kF32),
      logits(spec.vocab_size, DType::kF32) {}

int64_t Decoder::Workspace::RowBytes() const {
  return residual.RowBytes() + normed.RowBytes() + delta.RowBytes() + second_delta.RowBytes() +
         slice.RowBytes() + attention.RowBytes() + mlp.RowBytes() + moe.RowBytes();
}

int64_t Decoder::Workspace::LogitsRowBytes() const {
  return gathered.RowBytes() + gathered_delta.RowBytes() + head_rows.RowBytes() + logits.RowBytes();
}

Status Decoder::Workspace::Allocate(ops::Backend& backend, int32_t max_rows,
                                    int32_t max_logits_rows) {
  for (RowBuffer* buffer : {&residual, &normed, &delta, &second_delta, &slice}) {
    TANDEM_RETURN_IF_ERROR(buffer->Allocate(backend, max_rows));
  }
  TANDEM_RETURN_IF_ERROR(squares.Allocate(backend, num_norms));
  TANDEM_RETURN_IF_ERROR(attention.Allocate(backend, max_rows));
  TANDEM_RETURN_IF_ERROR(mlp.Allocate(backend, max_rows));
  TANDEM_RETURN_IF_ERROR(moe.Allocate(backend, max_rows));
  for (RowBuffer* buffer : {&gathered, &gathered_delta, &head_rows, &logits}) {
    TANDEM_RETURN_IF_ERROR(buffer->Allocate(backend, max_logits_rows));
  }
  return {};
}

Decoder::Decoder(std::shared_ptr<const Weights> weights, ops::Backend& backend,
                 Heartbeat* heartbeat, Communicator* ranks)
    : weights_(std::move(weights)),
      backend_(backend),
      heartbeat_(heartbeat),
      ranks_(ranks),
      stage_(IsSplit(weights_->spec.place) ? &ranks->stage() : nullptr),
      workspace_(weights_->spec) {}

int64_t Decoder::WorkspaceBytes(const ModelSpec& spec, int32_t max_rows, int32_t max_logits_rows) {
  const Workspace workspace(spec);
  return max_rows * workspace.RowBytes() + workspace.num_norms * workspace.squares.RowBytes() +
         max_logits_rows * workspace.LogitsRowBytes();
}

Result<std::unique_ptr<Decoder>> Decoder::Create(std::shared_ptr<const Weights> weights,
                                                 ops::Backend& backend, int32_t max_rows,
                                                 int32_t max_logits_rows, Heartbeat* heartbeat,
                                                 Communicator* ranks) {
  if (max_rows < 1 || max_logits_rows < 1) {
    return InvalidArgument("a decoder needs room for at least one row and one row of logits");
  }
  TANDEM_CHECK(IsPlace(weights->spec.place, ranks), "the weights are those of another rank");
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(weights), backend, heartbeat, ranks));
  TANDEM_RETURN_IF_ERROR(decoder->workspace_.Allocate(backend, max_rows, max_logits_rows));
  decoder->max_rows_ = max_rows;
  decoder->max_logits_rows_ = max_logits_rows;
  return decoder;
}

void Decoder::Embed(const ops::BatchView& batch) {
  ops::Ops& ops = backend_.ops();
  const Tensor residual = Residual(batch);
  const Tensor table =
      weights_->embedding.View(spec().dtype, {spec().vocab_rows(), spec().hidden_size});
  if (stage_ == nullptr) {
    ops.Embed(table, batch.tokens, residual);
  } else {
    // A row is that of the rank that has it, plus the zeros of the others.
    ops.EmbedPart({.rows = table, .first = spec().first_vocab_row(), .num_rows = spec().vocab_size},
                  batch.tokens, residual);
    stage_->AllReduce(residual);
  }
  const auto add_positions = [&](const Buffer& learned, int64_t rows, const int32_t* positions) {
    if (rows == 0) return;
    const Tensor added = Delta(batch);
    ops.Embed(learned.View(spec().dtype, {rows, spec().hidden_size}), positions, added);
    ops.Add(residual, added);
  };
  add_positions(weights_->positions, spec().position_rows,
                batch.turns != nullptr ? batch.turns : batch.positions);
  add_positions(weights_->second_positions, spec().second_position_rows, batch.second_positions);
  if (spec().embedding_norm) {
    NormInPlace(ops, spec().norm, weights_->embedding_norm, residual);
  }
}

void Decoder::SumOverRanks(const Tensor& delta) {
  if (stage_ != nullptr) stage_->AllReduce(delta);
}

BlockInput Decoder::SumAndNorm(const ops::NormedRows& x) {
  if (stage_ == nullptr) return x;
  if (stage_->AllReduceAddNorm(x)) return x.rows;
  stage_->AllReduce(x.delta);
  return x;
}

void Decoder::SettleSum(const ops::BatchView& batch) {
  if (owes_sum_) SumOverRanks(Delta(batch));
  owes_sum_ = false;
}

void Decoder::SendStream(const ops::BatchView& batch) {
  const int to = ranks_->rank() + ranks_->stage().size();
  ranks_->Send(Residual(batch), to);
  ranks_->Send(Delta(batch), to);
}

void Decoder::ReceiveStream(const ops::BatchView& batch) {
  const int from = ranks_->rank() - ranks_->stage().size();
  ranks_->Receive(Residual(batch), from);
  ranks_->Receive(Delta(batch), from);
}

void Decoder::RunLayer(int32_t layer, const ops::BatchView& batch, const ops::KvPool& pool) {
  ops::Ops& ops = backend_.ops();
  const NormSpec& norm = spec().norm;
  const LayerSpec& layer_spec = spec().layers[static_cast<size_t>(layer)];
  const LayerWeights& weights = weights_->layers[static_cast<size_t>(layer)];
  const Tensor residual = Residual(batch);
  const Tensor normed = workspace_.normed.View(batch.num_rows);
  const Tensor delta = Delta(batch);
  // Before the first layer of the model there is nothing to add.
  const bool is_first = layer == 0 && spec().place.is_first_stage();
  const Tensor pending = is_first ? Tensor{} : delta;
  const ops::KvPlace place = pool.layers[static_cast<size_t>(layer)];
  const ops::KvGroup& kv = pool.groups[static_cast<size_t>(place.group)];
  ops::BatchView view = batch;
  if (kv.windowed) view.block_table = batch.window_table;
  const AttentionContext context = {view, kv, place.index, weights_->rope(layer), norm, stage_};
  const auto attend = [&](const BlockInput& x, ops::NormedRows& next) {
    workspace_.attention.Run(ops, layer_spec.attention, weights.attention, context, x, next);
  };
  const auto run_mlp = [&](const BlockInput& x, ops::NormedRows& next) {
    if (layer_spec.moe.num_experts == 0) {
      workspace_.mlp.Run(ops, layer_spec.mlp, weights.mlp, x, next);
    } else {
      workspace_.moe.Run(ops, layer_spec, weights.moe, workspace_.mlp, weights.mlp, RowsOf(ops, x),
                         next);
    }
  };
  // With what they add in `out` alone.
  const auto attend_to = [&](const Tensor& out, const BlockInput& x) {
    ops::NormedRows next = {.delta = out};
    attend(x, next);
  };
  const auto run_mlp_to = [&](const Tensor& out, const BlockInput& x) {
    ops::NormedRows next = {.delta = out};
    run_mlp(x, next);
  };
  const ops::NormedRows attention_in = Normed(norm, weights.input_norm, residual, pending, normed);
  const auto mlp_in = [&] { return Normed(norm, weights.post_norm, residual, delta, normed); };

  if (layer_spec.residual != Residual::kPreNorm) SettleSum(batch);
  switch (layer_spec.residual) {
    case Residual::kPreNorm: {
      const auto next_norm = [&](const NormWeights& next, int64_t index) {
        ops::NormedRows x = Normed(norm, next, residual, delta, normed);
        if (MayAdd(batch)) x.squares = workspace_.squares.ViewFrom(index, 1);
        return x;
      };
      const ops::NormedRows x = added_.value_or(attention_in);
      ops::NormedRows for_mlp = next_norm(weights.post_norm, NormOfMlp(layer));
      attend(owes_sum_ ? SumAndNorm(x) : x, for_mlp);
      ops::NormedRows for_next = {.delta = delta};
      const size_t next = static_cast<size_t>(layer) + 1;
      if (next < spec().layers.size() && spec().layers[next].residual == Residual::kPreNorm) {
        for_next = next_norm(weights_->layers[next].input_norm, NormOfAttention(layer + 1));
      }
      run_mlp(SumAndNorm(for_mlp), for_next);
      added_.reset();
      if (for_next.HasSum()) added_ = for_next;
      owes_sum_ = stage_ != nullptr;
      return;
    }
    case Residual::kSandwich:
      attend_to(delta, attention_in);
      SumOverRanks(delta);
      NormInPlace(ops, norm, weights.attention_out_norm, delta);
      run_mlp_to(delta, mlp_in());
      SumOverRanks(delta);
      NormInPlace(ops, norm, weights.mlp_out_norm, delta);
      return;
    case Residual::kPostNorm:
      if (!is_first) ops.Add(residual, delta);
      attend_to(delta, residual);
      SumOverRanks(delta);
      NormInPlace(ops, norm, weights.input_norm, delta);
      ops.Add(residual, delta);
      run_mlp_to(delta, residual);
      SumOverRanks(delta);
      NormInPlace(ops, norm, weights.post_norm, delta);
      return;
    case Residual::kParallel:
    case Residual::kParallelNorms: {
      // Both read the stream as it is before either adds to it.
      const Tensor second = workspace_.second_delta.View(batch.num_rows);
      ops.AddNorm(attention_in);
      if (layer_spec.residual == Residual::kParallel) {
        attend_to(delta, normed);
        run_mlp_to(second, normed);
      } else {
        attend_to(delta, normed);
        run_mlp_to(second, Normed(norm, weights.post_norm, residual, {}, normed));
      }
      const Tensor& both = delta;
      ops.Add(both, second);
      SumOverRanks(delta);
      return;
    }
    case Residual::kNormed: {
      const auto alpha = static_cast<float>(layer_spec.alpha);
      ops::NormedRows first = attention_in, last = mlp_in();
      first.rows = last.rows = residual;
      first.residual_scale = is_first ? 1.0f : alpha;
      last.residual_scale = alpha;
      ops.AddNorm(first);
      attend_to(delta, residual);
      SumOverRanks(delta);
      ops.AddNorm(last);
      run_mlp_to(delta, residual);
      SumOverRanks(delta);
      return;
    }
  }
}

void Decoder::CompleteStream(const ops::BatchView& batch) {
  const Tensor residual = Residual(batch);
  const Tensor delta = Delta(batch);
  const LayerSpec& last = spec().layers.back();
  if (last.residual != Residual::kNormed) return backend_.ops().Add(residual, delta);
  // As the norm of a next layer would, whose rows nobody reads.
  ops::NormedRows x = Normed(spec().norm, weights_->layers.back().input_norm, residual, delta,
                             workspace_.normed.View(batch.num_rows));
  x.residual_scale = static_cast<float>(last.alpha);
  backend_.ops().AddNorm(x);
}

void Decoder::RunPass(const ops::BatchView& batch, const ops::KvPool& pool) {
  backend_.ops().BeginPass(batch);
  if (MayAdd(batch)) backend_.ops().ClearSquares(workspace_.squares.View(workspace_.num_norms));
  for (int32_t layer = 0; layer < spec().num_layers(); ++layer) {
    RunLayer(layer, batch, pool);
    if (heartbeat_ != nullptr) heartbeat_->Beat();
  }
  SettleSum(batch);
  backend_.ops().EndPass();
}

void Decoder::RunLayers(const ops::BatchView& batch, const ops::KvPool& pool) {
  RunPass(batch, pool);
  CompleteStream(batch);
}

Tensor Decoder::RunHead(const ops::BatchView& batch) {
  ops::Ops& ops = backend_.ops();
  const Tensor logits = workspace_.logits.View(batch.num_logits);
  if (batch.num_logits == 0) return logits;
  const Tensor gathered = workspace_.gathered.View(batch.num_logits);
  const Tensor delta = workspace_.gathered_delta.View(batch.num_logits);
  ops.GatherRows(Residual(batch), batch.logits_rows, gathered);
  ops.GatherRows(Delta(batch), batch.logits_rows, delta);
  // The layers' normed rows are free by now; reuse them for the rows that want logits.
  ops::NormedRows x = Normed(spec().norm, weights_->final_norm, gathered, delta,
                             workspace_.normed.View(batch.num_logits));
  const LayerSpec& last = spec().layers.back();
  if (last.residual == Residual::kNormed) x.residual_scale = static_cast<float>(last.alpha);
  const Tensor own = stage_ == nullptr ? logits : workspace_.head_rows.View(batch.num_logits);
  ops.NormLinear(x, weights_->head, own);
  if (spec().logit_scale != 1.0 || spec().logit_cap != 0.0) {
    ops.CapLogits(own, static_cast<float>(spec().logit_scale),
                  static_cast<float>(spec().logit_cap));
  }
  if (stage_ != nullptr) stage_->GatherColumns(own, logits);
  return logits;
}

// All ranks of the last stage have the same logits; the others are divided among them.
Tensor Decoder::ShareLogits(const ops::BatchView& batch) {
  const Tensor logits = workspace_.logits.View(batch.num_logits);
  if (batch.num_logits == 0) return logits;
  const RankPlace& place = spec().place;
  const auto first = static_cast<int>(place.first_with_logits());
  const auto having = static_cast<int>(place.ranks);
  if (!place.is_last_stage()) {
    ranks_->Receive(logits, first + ranks_->rank() % having);
    return logits;
  }
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    const bool has_them = rank >= first && rank < first + having;
    if (!has_them && rank % having == place.rank) ranks_->Send(logits, rank);
  }
  return logits;
}

int32_t Decoder::NumSlices(const ops::BatchView& batch) const {
  const int64_t stages = spec().place.stages;
  // All tokens of a prefix see each other, so none of them is run before the others.
  if (stages == 1 || batch.prefix_len != nullptr) return 1;
  return std::clamp(batch.num_rows / kMeanSliceRows, 1,
                    static_cast<int32_t>(kMostSlicesOfStage * stages));
}

void Decoder::RunStage(const ops::BatchView& batch, const ops::KvPool& pool) {
  const RankPlace& place = spec().place;
  if (place.is_first_stage()) {
    Embed(batch);
  } else {
    ReceiveStream(batch);
  }
  RunPass(batch, pool);
  if (!place.is_last_stage()) SendStream(batch);
}

void Decoder::RunSlices(const ops::BatchView& batch, const ops::KvPool& pool, int32_t slices) {
  TANDEM_CHECK(batch.num_seqs <= max_rows_, "more sequences than rows");
  auto* const arrays = workspace_.slice.View(max_rows_).As<int32_t>();
  const int32_t wanted = (batch.num_rows + slices - 1) / slices;
  const int32_t rows = (wanted + kSliceMultiple - 1) / kSliceMultiple * kSliceMultiple;
  for (first_row_ = 0; first_row_ < batch.num_rows; first_row_ += rows) {
    const ops::BatchSlice slice = {.first_row = first_row_,
                                   .num_rows = std::min(rows, batch.num_rows - first_row_),
                                   .query_start = arrays,
                                   .context_len = arrays + batch.num_seqs + 1};
    backend_.ops().LaySlice(batch, slice);
    RunStage(ops::SliceOf(batch, slice), pool);
  }
  first_row_ = 0;
}

Tensor Decoder::Forward(const ops::BatchView& batch, const ops::KvPool& pool) {
  TANDEM_CHECK(batch.num_rows >= 1 && batch.num_rows <= max_rows_,
               std::to_string(batch.num_rows) + " rows, room for " + std::to_string(max_rows_));
  TANDEM_CHECK(batch.num_logits <= max_logits_rows_ && batch.num_logits <= batch.num_rows,
               std::to_string(batch.num_logits) + " rows of logits, room for " +
                   std::to_string(max_logits_rows_));
  TANDEM_CHECK(FitsPool(spec(), pool), "the pool was made for another model");
  const RankPlace& place = spec().place;
  if (!place.has_layers()) return ShareLogits(batch);
  const int32_t slices = NumSlices(batch);
  if (slices == 1) {
    RunStage(batch, pool);
  } else {
    RunSlices(batch, pool, slices);
  }
  if (!place.is_last_stage()) return ShareLogits(batch);
  const Tensor logits = RunHead(batch);
  return place.shares_logits() ? ShareLogits(batch) : logits;
}

}  // namespace tandem
