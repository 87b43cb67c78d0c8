#include "checkpoint/quantize/layer_pass.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/rope.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// Rows of a batch, unless one sample has more.
constexpr int32_t kBatchRows = 2048;
constexpr int32_t kBlockTokens = 64;

int32_t MaxRows(const CalibrationRows& rows) {
  return static_cast<int32_t>(std::min<int64_t>(rows.total, std::max(kBatchRows, rows.longest)));
}

// A spec of one layer like `layer`, for a cache of that layer alone.
ModelSpec OneLayer(const ModelSpec& spec, int64_t layer) {
  ModelSpec one = spec;
  one.layers = {spec.layer(layer)};
  one.exceptions.clear();
  return one;
}

// Forwards the functions of a layer, so that fused ones are composed of them, and shows the rows
// that a product takes.
class ObservingOps final : public ops::Ops {
 public:
  using Observe = std::function<void(const Tensor& x, const ops::LinearWeight& weight)>;
  ObservingOps(ops::Ops& inner, Observe observe) : inner_(inner), observe_(std::move(observe)) {}

  void Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) override {
    inner_.Embed(table, tokens, out);
  }
  void AddNorm(const ops::NormedRows& x) override { inner_.AddNorm(x); }
  void Add(const Tensor& residual, const Tensor& delta) override { inner_.Add(residual, delta); }
  void NormHeads(const Tensor& qkv, int64_t first_column, int64_t num_columns, int64_t width,
                 const ops::Norm& norm) override {
    inner_.NormHeads(qkv, first_column, num_columns, width, norm);
  }
  void Linear(const Tensor& x, const ops::LinearWeight& weight, const Tensor& out) override {
    observe_(x, weight);
    inner_.Linear(x, weight, out);
  }
  void QkvRopeStore(const Tensor& qkv, const ops::RopeTable& rope, const ops::BatchView& batch,
                    const ops::KvGroup& kv, int32_t layer) override {
    inner_.QkvRopeStore(qkv, rope, batch, kv, layer);
  }
  void PagedAttention(const Tensor& qkv, const ops::BatchView& batch, const ops::KvGroup& kv,
                      int32_t layer, const ops::AttentionRule& rule, const Tensor& out) override {
    inner_.PagedAttention(qkv, batch, kv, layer, rule, out);
  }
  void Activate(ops::Activation activation, const Tensor& in, const Tensor& out) override {
    inner_.Activate(activation, in, out);
  }
  void CapLogits(const Tensor& logits, float scale, float cap) override {
    inner_.CapLogits(logits, scale, cap);
  }
  void GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) override {
    inner_.GatherRows(x, rows, out);
  }
  void CopyBlock(const ops::KvPool& pool, int32_t from, int32_t to, int32_t tokens) override {
    inner_.CopyBlock(pool, from, to, tokens);
  }
  void Sample(std::span<const ops::SampleRow> rows, int64_t vocab,
              std::span<SampledToken> out) override {
    inner_.Sample(rows, vocab, out);
  }
  void VerifyAndAccept(std::span<const ops::VerifyRow> rows, int64_t vocab) override {
    inner_.VerifyAndAccept(rows, vocab);
  }

 private:
  ops::Ops& inner_;
  const Observe observe_;
};

void RaiseTo(std::vector<float>& largest, size_t index, float magnitude) {
  largest[index] = std::max(largest[index], magnitude);
}

}  // namespace

struct LayerPass::State {
  State(const ModelSpec& model, ops::Backend& device, CalibrationRows samples, int64_t kept)
      : spec(model),
        backend(device),
        rows(std::move(samples)),
        kept_rows(kept),
        residual(spec.hidden_size, spec.dtype),
        normed(spec.hidden_size, spec.dtype),
        delta(spec.hidden_size, spec.dtype),
        attention(spec),
        mlp(spec) {}

  Status LoadLayer(WeightSource& source, int64_t layer);
  Status RunBatch(int64_t layer, const SampleBatch& batch, LayerStatistics& statistics);
  void Observe(InputGroup group, const Tensor& x, int64_t first_row, LayerStatistics& statistics);
  void ObserveCache(LayerStatistics& statistics);
  Status Upload(const std::vector<int32_t>& values, const int32_t*& out);
  int64_t BlocksOf(const SampleBatch& batch) const;

  const ModelSpec spec;
  ops::Backend& backend;
  const CalibrationRows rows;
  const int64_t kept_rows;
  RowBuffer residual;
  RowBuffer normed;
  RowBuffer delta;
  AttentionBlock attention;
  MlpBlock mlp;
  LayerWeights weights;
  Buffer cos, sin;
  ops::RopeTable rope;
  OwnedKvPool cache;
  std::vector<Buffer> arrays;  // of the current batch
  std::vector<std::byte> host;
  std::vector<float> floats;
};

LayerPass::LayerPass(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerPass::~LayerPass() = default;

std::vector<SampleBatch> BatchesOf(const CalibrationRows& rows) {
  const int32_t most = MaxRows(rows);
  std::vector<SampleBatch> batches;
  int64_t row = 0;
  for (size_t i = 0; i < rows.lengths.size(); ++i) {
    if (batches.empty() || batches.back().rows + rows.lengths[i] > most) {
      batches.push_back({.first = i, .first_row = row});
    }
    ++batches.back().count;
    batches.back().rows += rows.lengths[i];
    row += rows.lengths[i];
  }
  return batches;
}

Result<std::unique_ptr<LayerPass>> LayerPass::Create(const ModelSpec& spec, ops::Backend& backend,
                                                     CalibrationRows rows, int64_t kept_rows) {
  auto state = std::make_unique<State>(spec, backend, std::move(rows), kept_rows);
  const int32_t max_rows = MaxRows(state->rows);
  for (RowBuffer* buffer : {&state->residual, &state->normed, &state->delta}) {
    TANDEM_RETURN_IF_ERROR(buffer->Allocate(backend, max_rows));
  }
  TANDEM_RETURN_IF_ERROR(state->attention.Allocate(backend, max_rows));
  TANDEM_RETURN_IF_ERROR(state->mlp.Allocate(backend, max_rows));
  return std::unique_ptr<LayerPass>(new LayerPass(std::move(state)));
}

int64_t LayerPass::WorkBytes(const ModelSpec& spec, const CalibrationRows& rows,
                             int64_t kept_rows) {
  const int64_t hidden = spec.hidden_size * static_cast<int64_t>(SizeOf(spec.dtype));
  const int64_t row_bytes =
      3 * hidden + AttentionBlock(spec).RowBytes() + MlpBlock(spec).RowBytes();
  int64_t largest_layer = 0, columns = 0, widest = 0;
  for (const WeightId& id : StoredWeights(spec)) {
    const WeightRow& row = RowOf(id.role);
    if (!row.per_layer || id.layer > 0) continue;
    largest_layer +=
        WeightShape(spec, id).NumElements() * static_cast<int64_t>(SizeOf(WeightDType(spec, id)));
    if (id.part != WeightPart::kWeight || !row.quantizable) continue;
    columns += row.columns(spec, 0);
    widest = std::max(widest, row.columns(spec, 0));
  }
  const int64_t seen = widest * static_cast<int64_t>(SizeOf(spec.dtype));  // a copy on the host
  const int64_t cache = int64_t{MaxRows(rows)} * OneLayer(spec, 0).KvBytesPerToken(spec.dtype);
  const int64_t statistics = columns * kept_rows * int64_t{sizeof(float)};
  return MaxRows(rows) * (row_bytes + seen) + largest_layer + 2 * cache + statistics;
}

Status LayerPass::State::LoadLayer(WeightSource& source, int64_t layer) {
  weights = {};
  WeightLoader loader(source, backend, {.layers = QuantScheme{}});
  TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kInputNorm, layer, weights.input_norm));
  TANDEM_RETURN_IF_ERROR(LoadNorm(loader, WeightRole::kPostNorm, layer, weights.post_norm));
  TANDEM_RETURN_IF_ERROR(LoadAttention(loader, layer, weights.attention));
  TANDEM_RETURN_IF_ERROR(LoadMlp(loader, layer, weights.mlp));

  const AttentionSpec& kind = spec.layer(layer).attention;
  const Shape shape{rows.longest, kind.rope.dim / 2};
  const auto bytes = static_cast<size_t>(shape.NumElements()) * sizeof(float);
  const Buffer host_cos = Buffer::OnHost(bytes);
  const Buffer host_sin = Buffer::OnHost(bytes);
  if (host_cos.data() == nullptr || host_sin.data() == nullptr) {
    return ResourceExhausted("no memory for rotary tables of " + std::to_string(bytes) + " bytes");
  }
  FillRopeTables(kind.rope, rows.longest, host_cos.View(DType::kF32, shape),
                 host_sin.View(DType::kF32, shape));
  TANDEM_RETURN_IF_ERROR(loader.LoadBytes(host_cos, cos));
  TANDEM_RETURN_IF_ERROR(loader.LoadBytes(host_sin, sin));
  rope = {cos.View(DType::kF32, shape), sin.View(DType::kF32, shape)};

  int64_t blocks = 0;
  for (const SampleBatch& batch : BatchesOf(rows)) blocks = std::max(blocks, BlocksOf(batch));
  cache = {};
  TANDEM_ASSIGN_OR_RETURN(
      cache, MakeKvPool(OneLayer(spec, layer), spec.dtype, blocks, kBlockTokens, backend));
  return {};
}

int64_t LayerPass::State::BlocksOf(const SampleBatch& batch) const {
  int64_t blocks = 0;
  for (size_t i = batch.first; i < batch.first + batch.count; ++i) {
    blocks += (rows.lengths[i] + kBlockTokens - 1) / kBlockTokens;
  }
  return blocks;
}

Status LayerPass::State::Upload(const std::vector<int32_t>& values, const int32_t*& out) {
  const size_t bytes = values.size() * sizeof(int32_t);
  TANDEM_ASSIGN_OR_RETURN(Buffer buffer, backend.Allocate(bytes));
  backend.CopyToDevice(buffer.data(), values.data(), bytes);
  out = buffer.As<int32_t>();
  arrays.push_back(std::move(buffer));
  return {};
}

void LayerPass::State::Observe(InputGroup group, const Tensor& x, int64_t first_row,
                               LayerStatistics& statistics) {
  const int64_t columns = x.dim(1);
  InputStatistics& inputs = statistics.inputs[group];
  if (inputs.largest.empty()) {
    inputs.largest.resize(static_cast<size_t>(columns));
    inputs.sum.resize(static_cast<size_t>(columns));
  }
  host.resize(static_cast<size_t>(x.NumBytes()));
  backend.CopyToHost(host.data(), x.data, host.size());
  floats.resize(static_cast<size_t>(columns));
  const int64_t spacing = std::max<int64_t>((rows.total + kept_rows - 1) / kept_rows, 1);
  const Tensor all{host.data(), x.dtype, x.shape, {}};
  for (int64_t row = 0; row < x.dim(0); ++row) {
    ConvertElements(all.RowRange(row, 1), {floats.data(), DType::kF32, {1, columns}, {}});
    for (size_t i = 0; i < floats.size(); ++i) {
      const float magnitude = std::abs(floats[i]);
      RaiseTo(inputs.largest, i, magnitude);
      inputs.sum[i] += magnitude;
    }
    if ((first_row + row) % spacing != 0) continue;
    inputs.rows.insert(inputs.rows.end(), floats.begin(), floats.end());
    ++inputs.kept_rows;
  }
  inputs.num_rows += x.dim(0);
}

// Positions that no sample has written hold zeros or an earlier batch's keys of this layer.
void LayerPass::State::ObserveCache(LayerStatistics& statistics) {
  const ops::KvGroup& kv = cache.pool.groups.front();
  const auto heads = static_cast<size_t>(kv.num_kv_heads);
  const auto dim = static_cast<size_t>(kv.head_dim);
  statistics.keys.resize(heads);
  statistics.values.resize(heads * dim);
  host.resize(static_cast<size_t>(kv.data.NumBytes()));
  backend.CopyToHost(host.data(), kv.data.data, host.size());
  const int64_t head = kv.elements_per_head();
  floats.resize(static_cast<size_t>(head));
  const Tensor pieces{host.data(), kv.data.dtype, {kv.data.NumElements() / head, head}, {}};
  for (int64_t piece = 0; piece < pieces.dim(0); ++piece) {
    ConvertElements(pieces.RowRange(piece, 1), {floats.data(), DType::kF32, {1, head}, {}});
    const auto index = static_cast<size_t>(piece % (2 * kv.num_kv_heads));
    for (size_t i = 0; i < floats.size(); ++i) {
      const float magnitude = std::abs(floats[i]);
      if (index < heads) {
        RaiseTo(statistics.keys, index, magnitude);
      } else {
        RaiseTo(statistics.values, (index - heads) * dim + i % dim, magnitude);
      }
    }
  }
}

Status LayerPass::State::RunBatch(int64_t layer, const SampleBatch& samples,
                                  LayerStatistics& statistics) {
  std::vector<int32_t> positions, row_seq, query_start = {0}, context_len, tables;
  int32_t max_blocks = 0, block = 0;
  for (size_t i = 0; i < samples.count; ++i) {
    max_blocks =
        std::max(max_blocks, (rows.lengths[samples.first + i] + kBlockTokens - 1) / kBlockTokens);
  }
  for (size_t i = 0; i < samples.count; ++i) {
    const int32_t length = rows.lengths[samples.first + i];
    for (int32_t position = 0; position < length; ++position) {
      positions.push_back(position);
      row_seq.push_back(static_cast<int32_t>(i));
    }
    query_start.push_back(query_start.back() + length);
    context_len.push_back(length);
    for (int32_t slot = 0; slot < max_blocks; ++slot) {
      tables.push_back(slot * kBlockTokens < length ? block++ : 0);
    }
  }
  arrays.clear();
  ops::BatchView batch;
  batch.num_rows = samples.rows;
  batch.num_seqs = static_cast<int32_t>(samples.count);
  batch.max_query_len = rows.longest;
  TANDEM_RETURN_IF_ERROR(Upload(positions, batch.positions));
  TANDEM_RETURN_IF_ERROR(Upload(row_seq, batch.row_seq));
  TANDEM_RETURN_IF_ERROR(Upload(query_start, batch.query_start));
  TANDEM_RETURN_IF_ERROR(Upload(context_len, batch.context_len));
  TANDEM_RETURN_IF_ERROR(Upload(tables, batch.block_table));
  batch.max_blocks = max_blocks;

  ObservingOps ops(backend.ops(), [&](const Tensor& x, const ops::LinearWeight& weight) {
    const auto group = &weight == &weights.attention.qkv   ? InputGroup::kAttention
                       : &weight == &weights.attention.out ? InputGroup::kAttentionOut
                       : &weight == &weights.mlp.gate_up   ? InputGroup::kMlp
                                                           : InputGroup::kMlpOut;
    Observe(group, x, samples.first_row, statistics);
  });
  const Tensor residual_rows = residual.View(samples.rows);
  const Tensor normed_rows = normed.View(samples.rows);
  const Tensor delta_rows = delta.View(samples.rows);
  const LayerSpec& layer_spec = spec.layer(layer);
  attention.Run(ops, layer_spec.attention, weights.attention,
                {batch, cache.pool.groups.front(), 0, rope, spec.norm},
                Normed(spec.norm, weights.input_norm, residual_rows, {}, normed_rows), delta_rows);
  mlp.Run(ops, layer_spec.mlp, weights.mlp,
          Normed(spec.norm, weights.post_norm, residual_rows, delta_rows, normed_rows), delta_rows);
  // What the next layer's norm would do first.
  backend.ops().Add(residual_rows, delta_rows);
  TANDEM_RETURN_IF_ERROR(backend.Synchronize());
  ObserveCache(statistics);
  return {};
}

Result<LayerStatistics> LayerPass::Run(WeightSource& source, int64_t layer, const ReadRows& read,
                                       const WriteRows& write, const Progress& progress) {
  State& state = *state_;
  TANDEM_RETURN_IF_ERROR(state.LoadLayer(source, layer));
  LayerStatistics statistics;
  for (const SampleBatch& batch : BatchesOf(state.rows)) {
    const Tensor rows = state.residual.View(batch.rows);
    state.host.resize(static_cast<size_t>(rows.NumBytes()));
    TANDEM_RETURN_IF_ERROR(read(batch.first_row, batch.rows, state.host.data()));
    state.backend.CopyToDevice(rows.data, state.host.data(), state.host.size());
    TANDEM_RETURN_IF_ERROR(state.RunBatch(layer, batch, statistics));
    state.host.resize(static_cast<size_t>(rows.NumBytes()));
    state.backend.CopyToHost(state.host.data(), rows.data, state.host.size());
    TANDEM_RETURN_IF_ERROR(write(batch.first_row, batch.rows, state.host.data()));
    progress(static_cast<double>(batch.first_row + batch.rows) /
             static_cast<double>(state.rows.total));
  }
  return statistics;
}

}  // namespace tandem
