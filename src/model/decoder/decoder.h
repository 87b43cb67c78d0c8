// Decoder: one forward pass, the same code for every backend, family, draft and target, and for
// every rank of a model that is split over several. A stage runs a batch of many rows in slices, so
// that the next one can begin (docs/decisions/0041). Owns its workspace, made once for the largest
// batch; Forward allocates nothing. Used by one thread.
#pragma once

#include <memory>
#include <optional>

#include "base/heartbeat.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "model/blocks/attention.h"
#include "model/blocks/mlp.h"
#include "model/blocks/moe.h"
#include "model/blocks/row_buffer.h"
#include "model/decoder/weights.h"
#include "ops/backend.h"

namespace tandem {

class Decoder {
 public:
  // Makes workspaces for up to `max_rows` rows of which `max_logits_rows` want logits. `heartbeat`
  // (null: none) outlives the decoder and beats after each layer. So does `ranks`, all ranks of the
  // engine, which the weights of a part need (ModelSpec::place): their decoders run together, on
  // the same batches.
  static Result<std::unique_ptr<Decoder>> Create(std::shared_ptr<const Weights> weights,
                                                 ops::Backend& backend, int32_t max_rows,
                                                 int32_t max_logits_rows,
                                                 Heartbeat* heartbeat = nullptr,
                                                 Communicator* ranks = nullptr);
  static int64_t WorkspaceBytes(const ModelSpec& spec, int32_t max_rows, int32_t max_logits_rows);

  // Runs the batch: stores keys and values into `pool` and returns the logits of batch.logits_rows:
  // [num_logits, vocab] fp32, a view that is valid until the next call. Every rank returns them,
  // one that has nothing of the model too.
  Tensor Forward(const ops::BatchView& batch, const ops::KvPool& pool);

  // The parts of a pass, for callers that run a model one part at a time and load the weights of
  // that part alone.

  // The residual stream, [rows, hidden]: what Embed writes and the layers change. A view that is
  // valid as long as the decoder.
  Tensor Stream(int64_t rows) const { return workspace_.residual.View(rows); }
  void Embed(const ops::BatchView& batch);
  // All layers that there are; the first finds the stream complete, the last leaves it so.
  void RunLayers(const ops::BatchView& batch, const ops::KvPool& pool);

  const ModelSpec& spec() const { return weights_->spec; }

 private:
  // Activations, in the model's dtype unless said.
  struct Workspace {
    explicit Workspace(const ModelSpec& spec);
    // Bytes per row, and per row that wants logits.
    int64_t RowBytes() const;
    int64_t LogitsRowBytes() const;
    Status Allocate(ops::Backend& backend, int32_t max_rows, int32_t max_logits_rows);

    RowBuffer residual;      // [rows, hidden]
    RowBuffer normed;        // [rows, hidden]
    RowBuffer delta;         // [rows, hidden] what a block adds to the residual
    int64_t num_norms;       // for which LinearAdd may leave NormedRows::squares
    RowBuffer squares;       // [num_norms, kMaxAddedRows] int64
    RowBuffer second_delta;  // the same of an MLP beside attention; of no columns without
    // The arrays of the slice that runs, query_start and then context_len: room for three numbers a
    // row, so for both of as many sequences as rows. Of no columns where there is one stage.
    RowBuffer slice;
    AttentionBlock attention;
    MlpBlock mlp;
    MoeBlock moe;
    // [logits rows, hidden]: the residual of the rows that want logits, and the delta; of no
    // columns before the last stage.
    RowBuffer gathered;
    RowBuffer gathered_delta;
    RowBuffer head_rows;  // [logits rows, spec.vocab_rows()] fp32; of no columns if not split
    RowBuffer logits;     // [logits rows, vocab] fp32
  };

  Decoder(std::shared_ptr<const Weights> weights, ops::Backend& backend, Heartbeat* heartbeat,
          Communicator* ranks);
  // How many slices a batch is run in, about: their rows are rounded up.
  int32_t NumSlices(const ops::BatchView& batch) const;
  // Embeds or receives the rows of a batch or a slice, runs the layers and sends the rows on.
  void RunStage(const ops::BatchView& batch, const ops::KvPool& pool);
  void RunSlices(const ops::BatchView& batch, const ops::KvPool& pool, int32_t slices);
  // The rows of the slice that runs: [batch.num_rows, hidden]
  Tensor Residual(const ops::BatchView& batch) const {
    return workspace_.residual.ViewFrom(first_row_, batch.num_rows);
  }
  Tensor Delta(const ops::BatchView& batch) const {
    return workspace_.delta.ViewFrom(first_row_, batch.num_rows);
  }
  // What every rank of the stage adds to the stream becomes what all of them add.
  void SumOverRanks(const Tensor& delta);
  // Sums x.delta over the stage's ranks and returns the next block's input, which is normed already
  // where one kernel does both.
  BlockInput SumAndNorm(const ops::NormedRows& x);
  // The sum that the last layer has left to the norm of the next one.
  void SettleSum(const ops::BatchView& batch);
  // The stream and what is yet to be added to it: to the next stage, and from the one before.
  void SendStream(const ops::BatchView& batch);
  void ReceiveStream(const ops::BatchView& batch);
  void RunLayer(int32_t layer, const ops::BatchView& batch, const ops::KvPool& pool);
  // All layers; the last one's delta is yet to be added.
  void RunPass(const ops::BatchView& batch, const ops::KvPool& pool);
  // Whether the batch has squares for LinearAdd.
  bool MayAdd(const ops::BatchView& batch) const {
    return workspace_.num_norms > 0 && stage_ == nullptr && batch.num_rows <= ops::kMaxAddedRows;
  }
  // Adds to the stream what the last layer has left for the next one to add.
  void CompleteStream(const ops::BatchView& batch);
  Tensor RunHead(const ops::BatchView& batch);
  Tensor ShareLogits(const ops::BatchView& batch);

  std::shared_ptr<const Weights> weights_;
  ops::Backend& backend_;
  Heartbeat* const heartbeat_;
  Communicator* const ranks_;  // null: the weights are the whole model
  Communicator* const stage_;  // null: the stage is one rank
  Workspace workspace_;
  int32_t max_rows_ = 0;
  int32_t max_logits_rows_ = 0;
  int32_t first_row_ = 0;  // of the slice that runs; 0 where none does
  // Within a pass: the next layer's input, where the MLP before it has added to the stream
  // (NormedRows::HasSum).
  std::optional<ops::NormedRows> added_;
  bool owes_sum_ = false;  // within a pass: `delta` still lacks its sum over the ranks
};

}  // namespace tandem
