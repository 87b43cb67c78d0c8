// Ops: the functions of a forward pass and of sampling, stream-ordered, behind one interface for
// every backend. They never allocate, synchronize or read configuration. All pointers and tensors
// lie in the backend's memory. Called by one thread at a time (the executor's).
//
// Batch invariance (CPU always; GPU by option): a row's result depends on that row alone, never on
// how many rows there are, how a prompt was chunked or which neighbours it has.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sampling.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace tandem::ops {

// The weights of y = x W^T + b in the layout the backend chose when it packed them.
struct LinearWeight {
  Buffer data;
  Buffer bias;  // [rows] fp32; empty without one
  // fp8: what each output's sum is multiplied with, [rows] fp32; empty otherwise.
  Buffer scales;
  // With activations of a calibrated range: what x is divided by before it is rounded to fp8; 0:
  // every row of x by its own largest value. Rounded where that pays: many rows of x by weights in
  // fp8 on a GPU that multiplies them; else x stays as it is.
  float input_scale = 0.0f;
  DType dtype = DType::kF32;
  int64_t rows = 0;  // output features
  int64_t cols = 0;  // input features

  int64_t weight_bytes() const { return rows * cols * static_cast<int64_t>(SizeOf(dtype)); }
};

// The rotary tables: cos and sin of position * frequency, [max_positions, head_dim / 2] fp32 each.
struct RopeTable {
  Tensor cos;
  Tensor sin;
};

// The paged keys and values of one model. Block first, so that one block of all layers is one piece
// of memory: [num_blocks, num_layers, 2 (k, v), num_kv_heads, block_tokens, head_dim].
struct KvPool {
  Tensor data;  // rank 1: the elements in the order above
  int64_t num_blocks = 0;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t block_tokens = 0;
  int32_t head_dim = 0;
  // fp8 pools: a stored element times its scale is the key or value.
  float key_scale = 1.0f;
  float value_scale = 1.0f;

  int64_t elements_per_head() const { return int64_t{block_tokens} * head_dim; }
  int64_t elements_per_block() const {
    return int64_t{num_layers} * 2 * num_kv_heads * elements_per_head();
  }
};

// Which sequences of a batch compute chunks of prompts, as upper bounds, so that they do not decide
// how the sequences that decode or verify beside them are computed.
struct ChunkBounds {
  int32_t num_seqs = 0;        // all sequences but so many have at most max_decode_len rows
  int32_t max_decode_len = 0;  // means something where num_seqs is not 0, as the others
  int32_t num_rows = 0;        // of ranges longer than max_decode_len, together
  int32_t min_len = 0;         // no range longer than max_decode_len is shorter than this
};

// A ragged batch of token ranges: prefill chunks, decode steps, verifications and catch-ups alike.
// Sequence s has the rows query_start[s] .. query_start[s+1]; its last row sits at absolute
// position context_len[s] - 1 and rows are consecutive positions. Lies in backend memory; the host
// knows only the counts, and on a device these are upper bounds: a row behind the last has row_seq
// -1 and stores nothing, a sequence without rows has query_start[s] == query_start[s + 1].
struct BatchView {
  int32_t num_rows = 0;
  int32_t num_seqs = 0;
  int32_t num_logits = 0;
  int32_t max_query_len = 0;             // no sequence has more rows; 0: num_rows
  ChunkBounds chunks = {};               // no sequences: not told apart
  const int32_t* tokens = nullptr;       // [num_rows]
  const int32_t* positions = nullptr;    // [num_rows] absolute
  const int32_t* row_seq = nullptr;      // [num_rows] sequence of the row
  const int32_t* query_start = nullptr;  // [num_seqs + 1]
  const int32_t* context_len = nullptr;  // [num_seqs] tokens in the cache after this batch
  const int32_t* block_table = nullptr;  // [num_seqs, max_blocks] block ids
  int32_t max_blocks = 0;
  const int32_t* logits_rows = nullptr;  // [num_logits] rows whose logits are wanted
};

class Ops {
 public:
  virtual ~Ops() = default;

  // out[i] = table[tokens[i]]; table and out of one dtype. A token beyond the table reads row 0: a
  // draft may have fewer rows than its target has tokens. out: [num_rows, hidden]
  virtual void Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) = 0;

  // residual += delta (unless delta is empty); out = rms_norm(residual) * weight.
  // residual, delta, out: [num_rows, hidden] in the activation dtype; weight: [hidden] likewise.
  virtual void AddRmsNorm(const Tensor& residual, const Tensor& delta, const Tensor& weight,
                          float epsilon, const Tensor& out) = 0;

  // out = x W^T + b. x: [num_rows, cols]; out: [num_rows, rows] in x's dtype or fp32.
  virtual void Linear(const Tensor& x, const LinearWeight& weight, const Tensor& out) = 0;

  // Rotates the q and k parts of qkv ([num_rows, (num_heads + 2 num_kv_heads) * head_dim];
  // rotate-half pairing) at the rows' positions, leaves q in place and stores k and v into the
  // pool's layer.
  virtual void QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                            const KvPool& pool, int32_t layer) = 0;

  // Causal attention of the q part of qkv over the pool's layer; rows behind the last become zeros.
  // out: [num_rows, num_heads * head_dim]
  virtual void PagedAttention(const Tensor& qkv, const BatchView& batch, const KvPool& pool,
                              int32_t layer, float scale, const Tensor& out) = 0;

  // out = silu(gate) * up of gate_up [num_rows, 2 * intermediate] = (gate, up). out: [num_rows,
  // intermediate]
  virtual void SwiGlu(const Tensor& gate_up, const Tensor& out) = 0;

  // out = down(silu(gate(x)) * up(x)). gate_up, activated: scratch [num_rows, 2 * intermediate],
  // [num_rows, intermediate]. Composed of Linear and SwiGlu unless a backend fuses it.
  virtual void GatedMlp(const Tensor& x, const LinearWeight& gate_up_weight,
                        const LinearWeight& down_weight, const Tensor& gate_up,
                        const Tensor& activated, const Tensor& out);

  // out[i] = x[rows[i]], or x[0] where x has no such row. out: [num_out, cols]
  virtual void GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) = 0;

  // Copies `tokens` leading tokens of block `from` to block `to`, all layers and heads.
  virtual void CopyBlock(const KvPool& pool, int32_t from, int32_t to, int32_t tokens) = 0;

  // Called ahead of the first Sample or VerifyAndAccept, so that they allocate nothing: no call
  // will have more rows at once or a larger vocabulary.
  virtual void ReserveSampling(int32_t /*max_rows*/, int64_t /*vocab*/) {}

  // Draws one token a row: out[i] belongs to rows[i]. A draw is the arg-max of filtered
  // log-probability + GumbelNoise at position history.num_tokens + num_ahead; a greedy row needs no
  // noise. The rows, what they point to and `out` lie in backend memory, so the host knows only an
  // upper bound of their number: an inert row (null logits) gets token -1.
  virtual void Sample(std::span<const SampleRow> rows, int64_t vocab,
                      std::span<SampledToken> out) = 0;

  // Ratio acceptance (arXiv 2302.01318), one row a sequence: accepts drafts while u < p/q, else
  // draws from max(p - q, 0); a bonus token from the last row when all held. The rows lie in
  // backend memory; an inert one (null slot) is passed over.
  virtual void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) = 0;
};

}  // namespace tandem::ops
