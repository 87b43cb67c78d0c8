#include "checkpoint/quantize/layer_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "model/decoder/decoder.h"
#include "model/prompt_rules.h"
#include "ops/forwarding_backend.h"
#include "ops/round_rules.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// Rows of a batch, unless one sample has more.
constexpr int32_t kBatchRows = 2048;
constexpr int32_t kBlockTokens = 64;
// Rows that go through experts together: few enough for every backend to compute them in one piece,
// so that all their inner values are in the scratch afterwards.
constexpr int64_t kExpertRows = 1024;

int32_t MaxRows(const CalibrationRows& rows) {
  return static_cast<int32_t>(std::min<int64_t>(rows.total, std::max(kBatchRows, rows.longest)));
}

int64_t BlocksOf(const CalibrationRows& rows, const SampleBatch& batch) {
  int64_t blocks = 0;
  for (size_t i = batch.first; i < batch.first + batch.count; ++i) {
    blocks += (rows.lengths[i] + kBlockTokens - 1) / kBlockTokens;
  }
  return blocks;
}

int64_t ExpertSlots(const ModelSpec& spec, int64_t layer, int64_t rows) {
  return rows * spec.layer(layer).moe.routing.experts_per_token;
}

// Who looks at a layer's products while they are computed.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void SeeProduct(const Tensor& x, const ops::LinearWeight& weight) = 0;
  // Rows from `first_row` of the batch on. inner: [slots, intermediate], by expert and of one
  // expert in the order of the slots (row * experts of a row + choice).
  virtual void SeeExperts(int64_t first_row, const Tensor& x, const ops::ExpertChoice& choice,
                          const Tensor& inner) = 0;
};

// Composes fused ops of single ones, and shows what products take.
class ObservedOps final : public ops::ForwardingOps {
 public:
  ObservedOps(ops::Ops& inner, Observer& observer) : ForwardingOps(inner), observer_(observer) {}

  void Linear(const Tensor& x, const ops::LinearWeight& weight, const Tensor& out) override {
    observer_.SeeProduct(x, weight);
    inner_.Linear(x, weight, out);
  }
  void NormLinear(const ops::NormedRows& x, const ops::LinearWeight& weight,
                  const Tensor& out) override {
    Ops::NormLinear(x, weight, out);
  }
  void Mlp(const Tensor& x, const ops::LinearWeight& in_weight, ops::Activation activation,
           const ops::LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
           const Tensor& out) override {
    Ops::Mlp(x, in_weight, activation, down_weight, inner, activated, out);
  }
  void NormMlp(const ops::NormedRows& x, const ops::LinearWeight& in_weight,
               ops::Activation activation, const ops::LinearWeight& down_weight,
               const Tensor& inner, const Tensor& activated, const Tensor& out) override {
    Ops::NormMlp(x, in_weight, activation, down_weight, inner, activated, out);
  }
  void Experts(const Tensor& x, const ops::ExpertChoice& choice, const ops::ExpertWeights& weights,
               const ops::ExpertScratch& scratch, const Tensor& out) override {
    const int64_t rows = x.dim(0);
    for (int64_t first = 0; first < rows; first += kExpertRows) {
      const int64_t count = std::min(kExpertRows, rows - first);
      const int64_t slots = count * choice.per_token();
      const ops::ExpertChoice chosen = {choice.experts.RowRange(first, count),
                                        choice.weights.RowRange(first, count)};
      const Tensor activated = scratch.activated.RowRange(0, slots);
      inner_.Experts(x.RowRange(first, count), chosen, weights,
                     {scratch.order, scratch.inner.RowRange(0, slots), activated,
                      scratch.outputs.RowRange(0, slots)},
                     out.RowRange(first, count));
      observer_.SeeExperts(first, x.RowRange(first, count), chosen, activated);
    }
  }

 private:
  Observer& observer_;
};

class ObservedBackend final : public ops::ForwardingBackend {
 public:
  ObservedBackend(ops::Backend& inner, Observer& observer)
      : ForwardingBackend(inner), ops_(inner.ops(), observer) {}
  ops::Ops& ops() override { return ops_; }

 private:
  ObservedOps ops_;
};

void RaiseTo(std::vector<float>& largest, size_t index, float magnitude) {
  largest[index] = std::max(largest[index], magnitude);
}

// Gathers the statistics of one layer.
class Gatherer final : public Observer {
 public:
  // `weights`: of the layer, whose products are seen.
  Gatherer(const ModelSpec& spec, int64_t layer, const LayerWeights& weights,
           const CalibrationRows& rows, int64_t kept_rows, ops::Backend& backend)
      : backend_(backend), kept_rows_(kept_rows), spacing_(Spacing(rows.total)) {
    const auto read_by = [&](WeightRole role) { return InputOf(spec, {role, layer}); };
    products_ = {{&weights.attention.qkv, read_by(WeightRole::kQuery)},
                 {&weights.attention.out, read_by(WeightRole::kAttentionOut)},
                 {&weights.mlp.gate_up, read_by(WeightRole::kUp)},
                 {&weights.mlp.down, read_by(WeightRole::kDown)}};
    before_experts_ = read_by(WeightRole::kExpertUp);
    for (const LayerInput& input : InputsOf(spec, layer)) {
      InputStatistics& seen = statistics_.inputs[input.id];
      seen.largest.resize(static_cast<size_t>(input.columns));
      seen.sum.resize(static_cast<size_t>(input.columns));
    }
    const int64_t experts = spec.layer(layer).moe.num_experts;
    if (experts > 0) expert_spacing_ = Spacing(ExpertSlots(spec, layer, rows.total) / experts);
  }

  // The row of all samples that the batch begins with.
  void BeginBatch(int64_t first_row) { batch_row_ = first_row; }

  void SeeProduct(const Tensor& x, const ops::LinearWeight& weight) override {
    const auto product = products_.find(&weight);
    if (product != products_.end()) See(product->second, x, batch_row_);
  }

  void SeeExperts(int64_t first_row, const Tensor& x, const ops::ExpertChoice& choice,
                  const Tensor& inner) override {
    See(before_experts_, x, batch_row_ + first_row);
    std::vector<int32_t> experts(static_cast<size_t>(choice.experts.NumElements()));
    backend_.CopyToHost(experts.data(), choice.experts.data, experts.size() * sizeof(int32_t));
    std::ranges::sort(experts);
    const Tensor rows = OnHost(inner);
    for (int64_t place = 0; place < rows.dim(0); ++place) {
      InputStatistics& seen =
          statistics_.inputs.at({InputGroup::kExpertOut, experts[static_cast<size_t>(place)]});
      const bool keep = seen.num_rows % expert_spacing_ == 0 && seen.kept_rows < kept_rows_;
      Add(rows.RowRange(place, 1), keep, seen);
    }
  }

  // Positions that no sample has written hold zeros or an earlier batch's keys of this layer.
  void SeeCache(const ops::KvGroup& kv) {
    const auto heads = static_cast<size_t>(kv.num_kv_heads);
    const auto dim = static_cast<size_t>(kv.head_dim);
    statistics_.keys.resize(heads);
    statistics_.values.resize(heads * dim);
    const int64_t head = kv.elements_per_head();
    const Tensor all = OnHost(kv.data);
    const Tensor pieces{all.data, all.dtype, {kv.data.NumElements() / head, head}, {}};
    for (int64_t piece = 0; piece < pieces.dim(0); ++piece) {
      const std::vector<float>& values = AsFloats(pieces.RowRange(piece, 1));
      const auto index = static_cast<size_t>(piece % (2 * kv.num_kv_heads));
      for (size_t i = 0; i < values.size(); ++i) {
        const float magnitude = std::abs(values[i]);
        if (index < heads) {
          RaiseTo(statistics_.keys, index, magnitude);
        } else {
          RaiseTo(statistics_.values, (index - heads) * dim + i % dim, magnitude);
        }
      }
    }
  }

  LayerStatistics Take() { return std::move(statistics_); }

 private:
  int64_t Spacing(int64_t rows) const {
    return std::max<int64_t>((rows + kept_rows_ - 1) / kept_rows_, 1);
  }

  // Products that are not packed may read the same rows: they are counted once.
  void See(const InputId& id, const Tensor& x, int64_t first_row) {
    InputStatistics& seen = statistics_.inputs.at(id);
    if (seen.num_rows > first_row) return;
    const Tensor rows = OnHost(x);
    for (int64_t row = 0; row < rows.dim(0); ++row) {
      Add(rows.RowRange(row, 1), (first_row + row) % spacing_ == 0, seen);
    }
  }

  void Add(const Tensor& row, bool keep, InputStatistics& seen) {
    const std::vector<float>& values = AsFloats(row);
    for (size_t i = 0; i < values.size(); ++i) {
      const float magnitude = std::abs(values[i]);
      RaiseTo(seen.largest, i, magnitude);
      seen.sum[i] += magnitude;
    }
    ++seen.num_rows;
    if (!keep) return;
    seen.rows.insert(seen.rows.end(), values.begin(), values.end());
    ++seen.kept_rows;
  }

  Tensor OnHost(const Tensor& x) {
    host_.resize(static_cast<size_t>(x.NumBytes()));
    backend_.CopyToHost(host_.data(), x.data, host_.size());
    return {host_.data(), x.dtype, x.shape, {}};
  }
  // Valid until the next call.
  const std::vector<float>& AsFloats(const Tensor& row) {
    floats_.resize(static_cast<size_t>(row.dim(1)));
    ConvertElements(row, {floats_.data(), DType::kF32, row.shape, {}});
    return floats_;
  }

  ops::Backend& backend_;
  const int64_t kept_rows_;
  const int64_t spacing_;
  int64_t expert_spacing_ = 1;
  int64_t batch_row_ = 0;
  std::map<const ops::LinearWeight*, InputId> products_;
  InputId before_experts_;
  LayerStatistics statistics_;
  std::vector<std::byte> host_;
  std::vector<float> floats_;
};

// A batch in the backend's memory: samples from their first to their last token.
class DeviceBatch {
 public:
  static Result<DeviceBatch> Make(const ModelSpec& spec, const CalibrationRows& rows,
                                  const SampleBatch& samples, ops::Backend& backend) {
    std::vector<int32_t> positions, row_seq, query_start = {0}, context_len, tables;
    std::vector<int32_t> turns, second_positions, prefix_len;
    int32_t max_blocks = 0, block = 0;
    for (size_t i = 0; i < samples.count; ++i) {
      max_blocks =
          std::max(max_blocks, (rows.lengths[samples.first + i] + kBlockTokens - 1) / kBlockTokens);
    }
    for (size_t i = 0; i < samples.count; ++i) {
      const int32_t length = rows.lengths[samples.first + i];
      const ops::PromptLayout& layout = rows.layouts[samples.first + i];
      prefix_len.push_back(layout.prefix_len);
      for (int32_t position = 0; position < length; ++position) {
        turns.push_back(ops::rules::TurnOf(layout, position));
        second_positions.push_back(ops::rules::SecondPositionOf(layout, position));
        positions.push_back(position);
        row_seq.push_back(static_cast<int32_t>(i));
      }
      query_start.push_back(query_start.back() + length);
      context_len.push_back(length);
      for (int32_t slot = 0; slot < max_blocks; ++slot) {
        tables.push_back(slot * kBlockTokens < length ? block++ : 0);
      }
    }
    // The table of Embed holds the rows of the batch in their order.
    std::vector<int32_t> tokens(positions.size());
    std::iota(tokens.begin(), tokens.end(), 0);

    DeviceBatch made;
    ops::BatchView& view = made.view_;
    view.num_rows = samples.rows;
    view.num_seqs = static_cast<int32_t>(samples.count);
    view.max_query_len = rows.longest;
    view.max_blocks = max_blocks;
    const RowForm form = RowFormOf(spec);
    if (!form.second_positions) second_positions.clear();
    if (!form.prefixes) prefix_len.clear();
    if (!form.turns) turns.clear();
    for (const auto& [values, out] : {std::pair(&tokens, &view.tokens),
                                      {&positions, &view.positions},
                                      {&row_seq, &view.row_seq},
                                      {&query_start, &view.query_start},
                                      {&context_len, &view.context_len},
                                      {&turns, &view.turns},
                                      {&second_positions, &view.second_positions},
                                      {&prefix_len, &view.prefix_len},
                                      {&tables, &view.block_table}}) {
      if (values->empty()) continue;
      const size_t bytes = values->size() * sizeof(int32_t);
      TANDEM_ASSIGN_OR_RETURN(Buffer buffer, backend.Allocate(bytes));
      backend.CopyToDevice(buffer.data(), values->data(), bytes);
      *out = buffer.As<int32_t>();
      made.arrays_.push_back(std::move(buffer));
    }
    return made;
  }
  const ops::BatchView& view() const { return view_; }

 private:
  ops::BatchView view_;
  std::vector<Buffer> arrays_;
};

// A model whose vocabulary is the tokens of a batch, one after the other.
class BatchEmbedding final : public WeightSource {
 public:
  BatchEmbedding(WeightSource& source, std::span<const int32_t> tokens)
      : source_(source), tokens_(tokens), spec_(source.spec()) {
    spec_.vocab_size = std::ssize(tokens);
  }
  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override {
    TANDEM_ASSIGN_OR_RETURN(Tensor stored, source_.Get(id));
    if (id.role != WeightRole::kEmbedding) return stored;
    const auto row_bytes = static_cast<size_t>(stored.NumBytes() / stored.dim(0));
    rows_.resize(tokens_.size() * row_bytes);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      std::memcpy(&rows_[i * row_bytes], stored.RowRange(tokens_[i], 1).data, row_bytes);
    }
    stored.data = rows_.data();
    stored.shape = {spec_.vocab_size, spec_.hidden_size};
    return stored;
  }
  void Release() override { source_.Release(); }

 private:
  WeightSource& source_;
  std::span<const int32_t> tokens_;
  ModelSpec spec_;
  std::vector<std::byte> rows_;
};

// The stream of a decoder, on the host.
Status TakeStream(const Tensor& stream, ops::Backend& backend, std::vector<std::byte>& host) {
  TANDEM_RETURN_IF_ERROR(backend.Synchronize());
  host.resize(static_cast<size_t>(stream.NumBytes()));
  backend.CopyToHost(host.data(), stream.data, host.size());
  return {};
}

}  // namespace

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

int64_t LayerPass::WorkBytes(const ModelSpec& spec, const CalibrationRows& rows) {
  int64_t most = 0;
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    const ModelSpec one = OneLayer(spec, layer);
    int64_t weights = 0;
    for (const WeightId& id : StoredWeights(one)) {
      if (!RowOf(id.role).per_layer) continue;
      weights +=
          WeightShape(one, id).NumElements() * static_cast<int64_t>(SizeOf(WeightDType(one, id)));
    }
    // A copy of the widest input on the host.
    int64_t widest = 0;
    for (const LayerInput& input : InputsOf(one, 0)) widest = std::max(widest, input.columns);
    const int64_t seen = widest * static_cast<int64_t>(SizeOf(spec.dtype));
    const int64_t cache = int64_t{MaxRows(rows)} * one.KvBytesPerToken(spec.dtype);
    most = std::max(most, Decoder::WorkspaceBytes(one, MaxRows(rows), 1) + MaxRows(rows) * seen +
                              weights + 2 * cache);
  }
  return most;
}

int64_t LayerPass::StatisticsBytes(const ModelSpec& spec, const CalibrationRows& rows,
                                   int64_t kept_rows) {
  int64_t most = 0;
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    int64_t bytes = 0, within_experts = 0;
    for (const LayerInput& input : InputsOf(spec, layer)) {
      const int64_t row = input.columns * int64_t{sizeof(float)};
      (input.id.group == InputGroup::kExpertOut ? within_experts : bytes) +=
          row * std::min(kept_rows, rows.total);
    }
    const int64_t slots = ExpertSlots(spec, layer, rows.total);
    const int64_t slot = spec.layer(layer).moe.expert.intermediate_size * int64_t{sizeof(float)};
    most = std::max(most, bytes + std::min(within_experts, slots * slot));
  }
  return most;
}

Status LayerPass::Embed(WeightSource& source, std::span<const std::vector<int32_t>> samples,
                        const WriteRows& write) {
  std::vector<std::byte> host;
  for (const SampleBatch& batch : BatchesOf(rows_)) {
    std::vector<int32_t> tokens;
    for (const std::vector<int32_t>& sample : samples.subspan(batch.first, batch.count)) {
      tokens.insert(tokens.end(), sample.begin(), sample.end());
    }
    BatchEmbedding rows(source, tokens);
    TANDEM_ASSIGN_OR_RETURN(const auto weights, LoadEmbeddingAlone(rows, backend_));
    TANDEM_ASSIGN_OR_RETURN(const auto decoder,
                            Decoder::Create(weights, backend_, batch.rows, /*max_logits_rows=*/1));
    TANDEM_ASSIGN_OR_RETURN(const DeviceBatch on_device,
                            DeviceBatch::Make(source.spec(), rows_, batch, backend_));
    decoder->Embed(on_device.view());
    TANDEM_RETURN_IF_ERROR(TakeStream(decoder->Stream(batch.rows), backend_, host));
    TANDEM_RETURN_IF_ERROR(write(batch.first_row, batch.rows, host.data()));
  }
  return {};
}

Result<LayerStatistics> LayerPass::Run(WeightSource& source, int64_t layer, const ReadRows& read,
                                       const WriteRows& write, const Progress& progress) {
  const ModelSpec& spec = source.spec();
  const std::vector<SampleBatch> batches = BatchesOf(rows_);
  int64_t blocks = 0;
  for (const SampleBatch& batch : batches) blocks = std::max(blocks, BlocksOf(rows_, batch));
  TANDEM_ASSIGN_OR_RETURN(const auto weights,
                          LoadLayerAlone(source, backend_, layer, rows_.longest));
  TANDEM_ASSIGN_OR_RETURN(const OwnedKvPool cache,
                          MakeKvPool(weights->spec, spec.dtype, blocks, kBlockTokens, backend_));
  Gatherer gatherer(spec, layer, weights->layers.front(), rows_, kept_rows_, backend_);
  ObservedBackend observed(backend_, gatherer);
  TANDEM_ASSIGN_OR_RETURN(const auto decoder, Decoder::Create(weights, observed, MaxRows(rows_),
                                                              /*max_logits_rows=*/1));
  std::vector<std::byte> host;
  for (const SampleBatch& batch : batches) {
    const Tensor stream = decoder->Stream(batch.rows);
    host.resize(static_cast<size_t>(stream.NumBytes()));
    TANDEM_RETURN_IF_ERROR(read(batch.first_row, batch.rows, host.data()));
    backend_.CopyToDevice(stream.data, host.data(), host.size());
    TANDEM_ASSIGN_OR_RETURN(const DeviceBatch on_device,
                            DeviceBatch::Make(spec, rows_, batch, backend_));
    gatherer.BeginBatch(batch.first_row);
    decoder->RunLayers(on_device.view(), cache.pool);
    TANDEM_RETURN_IF_ERROR(TakeStream(stream, backend_, host));
    gatherer.SeeCache(cache.pool.groups.front());
    TANDEM_RETURN_IF_ERROR(write(batch.first_row, batch.rows, host.data()));
    progress(static_cast<double>(batch.first_row + batch.rows) / static_cast<double>(rows_.total));
  }
  return gatherer.Take();
}

}  // namespace tandem
