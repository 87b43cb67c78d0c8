#include "quantize/layer_pass.h"

#include <algorithm>
#include <utility>

#include "model/decoder/decoder.h"
#include "quantize/layer_observer.h"

namespace tandem {
namespace {

// The stream of a decoder, on the host.
Status TakeStream(const Tensor& stream, ops::Backend& backend, std::vector<std::byte>& host) {
  TANDEM_RETURN_IF_ERROR(backend.Synchronize());
  host.resize(static_cast<size_t>(stream.NumBytes()));
  backend.CopyToHost(host.data(), stream.data, host.size());
  return {};
}

}  // namespace

int64_t LayerPass::WorkBytes(const ModelSpec& spec, const CalibrationRows& rows) {
  const int32_t max_rows = MaxBatchRows(rows);
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
    const int64_t cache = int64_t{max_rows} * one.KvBytesPerToken(spec.dtype);
    most = std::max(
        most, Decoder::WorkspaceBytes(one, max_rows, 1) + max_rows * seen + weights + 2 * cache);
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
  TANDEM_ASSIGN_OR_RETURN(const OwnedKvPool cache, MakeKvPool(weights->spec, spec.dtype, blocks,
                                                              DeviceBatch::kBlockTokens, backend_));
  LayerObserver observer(spec, layer, weights->layers.front(), rows_.total, backend_);
  ObservedBackend observed(backend_, observer);
  TANDEM_ASSIGN_OR_RETURN(const auto decoder,
                          Decoder::Create(weights, observed, MaxBatchRows(rows_),
                                          /*max_logits_rows=*/1));
  std::vector<std::byte> host;
  for (const SampleBatch& batch : batches) {
    const Tensor stream = decoder->Stream(batch.rows);
    host.resize(static_cast<size_t>(stream.NumBytes()));
    TANDEM_RETURN_IF_ERROR(read(batch.first_row, batch.rows, host.data()));
    backend_.CopyToDevice(stream.data, host.data(), host.size());
    TANDEM_ASSIGN_OR_RETURN(const DeviceBatch on_device,
                            DeviceBatch::Make(spec, rows_, batch, backend_));
    observer.BeginBatch(batch.first_row);
    decoder->RunLayers(on_device.view(), cache.pool);
    TANDEM_RETURN_IF_ERROR(TakeStream(stream, backend_, host));
    observer.SeeCache(cache.pool.groups.front());
    TANDEM_RETURN_IF_ERROR(write(batch.first_row, batch.rows, host.data()));
    progress(static_cast<double>(batch.first_row + batch.rows) / static_cast<double>(rows_.total));
  }
  return observer.Take();
}

}  // namespace tandem
