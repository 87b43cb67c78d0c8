// Ops: one interface for every backend to the functions of a forward pass and of sampling, which
// run in stream order. They never allocate, synchronize or read configuration. All pointers and
// tensors are in the backend's memory. Called by one thread at a time (the executor's).
//
// Batch invariance (CPU always; GPU by option): a row's result depends on that row alone, never on
// how many rows there are, how a prompt was chunked or which neighbours it has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"
#include "tensor/buffer.h"
#include "tensor/quant_scheme.h"
#include "tensor/tensor.h"

namespace tandem::ops {

// The weights of y = x W^T + b in the layout the backend chose when it packed them.
struct LinearWeight {
  Buffer data;
  Buffer bias;  // [rows] fp32; empty without one
  // What the backend made of the scales and zero points of quantized elements; empty without. One
  // scale a row: the factor of each output's sum, [rows] fp32.
  Buffer scales;
  Buffer zeros;
  // What is done to x first: input c of the product is x[order[c]] * factors[order[c]]. [cols] fp32
  // and int32; empty: nothing.
  Buffer input_factors;
  Buffer input_order;
  // With a calibrated range of activations: the divisor of x before it is rounded to fp8. 0 means
  // each row of x is scaled by its own maximum. x is rounded only where that is faster: many rows
  // of x by weights in fp8 on a GPU that multiplies fp8; otherwise x stays unchanged.
  float input_scale = 0.0f;
  // Computed by kernels that are not chosen by their times, so that two GPUs of one kind give the
  // same bits: where ranks decide something for themselves. Set by the loader.
  bool same_everywhere = false;
  DType dtype = DType::kF32;  // in which elements lie in memory
  QuantScheme scheme = {};
  int64_t rows = 0;  // output features
  int64_t cols = 0;  // input features

  int64_t weight_bytes() const {
    return rows * cols * static_cast<int64_t>(SizeOf(dtype)) / scheme.elements_per_byte();
  }
  int64_t factor_bytes() const {
    return static_cast<int64_t>(scales.bytes() + zeros.bytes() + input_factors.bytes() +
                                input_order.bytes());
  }
};

// The rotary tables: cos and sin of position * frequency, [max_positions, pairs] fp32 each. The
// first 2 * pairs elements of a head turn, element i with i + pairs; the rest stays. Where the
// halves of a head are turned by positions of their own, each half has head_dim / 4 pairs.
struct RopeTable {
  Tensor cos;
  Tensor sin;
  // What the queries of each position are multiplied with after they have turned, [max_positions]
  // fp32; empty: nothing.
  Tensor query_factors = {};
  // The halves of a head turn by positions of their own: the first by BatchView::turns, the second
  // by its second positions.
  bool halves = false;
};

// The paged keys and values of the layers of a model that are alike in shape. Block first, so that
// one block of all its layers is one piece of memory: [num_blocks, num_layers, planes (k, v),
// num_kv_heads, block_tokens, head_dim].
struct KvGroup {
  Tensor data;  // rank 1: the elements in the order above, of the activations' type, fp8 or int8
  int64_t num_blocks = 0;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t block_tokens = 0;
  int32_t head_dim = 0;
  // Of multi-head latent attention: the first elements of a key, which are the value too. 0: values
  // are stored after the keys.
  int32_t latent_dim = 0;
  bool windowed = false;  // its blocks are those of BatchView::window_table
  // Of 8 bits alone: a stored element times the scale of its layer and head is the key or value.
  // [num_layers, num_kv_heads] fp32 each; empty: all are 1.
  Tensor key_scales;
  Tensor value_scales;

  bool has_8_bits() const { return SizeOf(data.dtype) == 1; }
  int32_t planes() const { return latent_dim == 0 ? 2 : 1; }
  int32_t value_dim() const { return latent_dim == 0 ? head_dim : latent_dim; }
  // Of rows as PagedAttention takes them, which are `columns` wide.
  int64_t query_heads(int64_t columns) const {
    return columns / head_dim - (latent_dim == 0 ? 2 * num_kv_heads : 0);
  }
  int64_t elements_per_head() const { return int64_t{block_tokens} * head_dim; }
  int64_t elements_per_block() const {
    return int64_t{num_layers} * planes() * num_kv_heads * elements_per_head();
  }
  // Those of one layer, a scale a head; null: all are 1.
  const float* key_scales_of(int32_t layer) const { return ScalesOf(key_scales, layer); }
  const float* value_scales_of(int32_t layer) const { return ScalesOf(value_scales, layer); }

 private:
  const float* ScalesOf(const Tensor& scales, int32_t layer) const {
    return scales.empty() ? nullptr : scales.As<float>() + int64_t{layer} * num_kv_heads;
  }
};

// x / sqrt(mean(x^2) + epsilon) * (weight + weight_offset) + bias, and with kLayer x - mean(x) in
// place of x. The arithmetic is fp32.
struct Norm {
  enum class Kind : uint8_t { kRms, kLayer };
  Kind kind = Kind::kRms;
  float epsilon = 0.0f;
  float weight_offset = 0.0f;  // 1 in Gemma
  Tensor weight = {};          // [width] in the activation dtype
  Tensor bias = {};            // the same; empty: zeros
};

// The norms of the heads of queries and of keys, each `width` columns of qkv by itself.
struct HeadNorms {
  struct Columns {
    int64_t count = 0;  // of all heads
    int64_t width = 0;
    Norm norm;  // as NormHeads takes it
  };
  Columns queries;  // the first columns of qkv
  Columns keys;     // the columns after those
};

// Rows first .. first + rows.dim(0) - 1 of a table; those beyond its end are zeros.
struct TablePart {
  Tensor rows;
  int64_t first = 0;
  int64_t num_rows = 0;  // of the table
};

// The rows of a residual stream as the next product takes them: what AddNorm makes of it.
struct NormedRows {
  Tensor residual = {};  // [num_rows, hidden], changed as by AddNorm
  Tensor delta = {};
  Norm norm = {};
  Tensor rows = {};  // [num_rows, hidden], scratch: the normed rows where a backend stores them
  // The residual is multiplied by it before the delta is added; 1 but for ChatGLM.
  float residual_scale = 1.0f;
  // For LinearAdd: zeros for the sums of the squares of kMaxAddedRows rows, in units of
  // kSquaresUnit, int64. With squares and no delta, LinearAdd has added to the residual, these are
  // the sums of its squares, and the rows are the residual times the norm's weight. Else unused.
  Tensor squares = {};
  // LinearAdd has stored the rows in a form of the backend's own, for its products. Says nothing
  // unless HasSum; AddNorm stores rows of the usual form, which are then to be used alone.
  bool rows_are_factors = false;

  // Whether LinearAdd has added to the residual.
  bool HasSum() const { return delta.empty() && !squares.empty(); }
};
// Integers without a sign, so that parts of a sum may be added in any order. There is room for
// values of 5,000 in 8,192 columns, or for one of 500,000; of 64 values of 0.01 at most 5e-6 of
// their sum are lost.
constexpr float kSquaresUnit = 0x1p-26f;
// LinearAdd takes no more rows.
constexpr int32_t kMaxAddedRows = 16;

// The function between the products of an MLP. kGelu is exact, kGeluTanh its approximation by tanh.
// kClampedSwiglu is of experts alone (gpt-oss): gate * sigmoid(1.702 * gate) * (up + 1), with gate
// at most a limit and up within both signs of it.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kClampedSwiglu };

// How the scores that a router gives the experts of a layer choose those of a row. In order:
// - every score goes through `function`, unless `chosen_first`;
// - a correction of each expert, where there is one, is added for the choice alone;
// - of `num_groups` equal groups of experts the `chosen_groups` best remain;
// - the `experts_per_token` experts with the largest scores are chosen, of equal ones the first;
// - the chosen experts' scores (through `function` now, if `chosen_first`) are their weights, which
//   are divided by their sum if `renormalise`, and multiplied by `scale`.
struct RoutingRule {
  enum class Function : uint8_t { kSoftmax, kSigmoid };
  // The value of a group: its largest score, or the sum of its two largest.
  enum class GroupValue : uint8_t { kLargest, kTwoLargest };

  Function function = Function::kSoftmax;
  bool chosen_first = false;
  int32_t experts_per_token = 0;
  int32_t num_groups = 1;
  int32_t chosen_groups = 1;
  GroupValue group_value = GroupValue::kLargest;
  // Scores in other groups count as 0 rather than as nothing: with negative corrections they may
  // be chosen all the same.
  bool others_count_zero = false;
  bool renormalise = false;
  float scale = 1.0f;
  // An expert is named by its number less this, which is negative for those before it: the first of
  // the experts that are computed here, where others are computed elsewhere.
  int32_t first = 0;
  bool operator==(const RoutingRule&) const = default;
};
// Bounds of what routing computes with on the stack.
constexpr int32_t kMaxExperts = 1024;
constexpr int32_t kMaxExpertsPerToken = 64;

// The experts that compute each row, and their weights: [num_rows, experts_per_token] int32, fp32.
struct ExpertChoice {
  Tensor experts;
  Tensor weights;

  int64_t per_token() const { return experts.dim(1); }
};

// The MLPs of a layer's experts, all of one shape and format. On the host; the weights' data is
// in the backend's memory.
struct ExpertWeights {
  std::vector<LinearWeight> in;  // of each expert, as Mlp takes it
  std::vector<LinearWeight> down;
  Buffer table;  // what Backend::MakeExpertTable made of both; in the backend's memory
  Activation activation = Activation::kSilu;
  float limit = 0.0f;          // of kClampedSwiglu
  bool scales_inputs = false;  // a row is multiplied by its weight before the expert, not after
};

// Scratch of Experts, with a slot for each expert of each row.
struct ExpertScratch {
  Tensor order;      // [2 * slots] int32
  Tensor inner;      // [slots, rows of an expert's first product]
  Tensor activated;  // [slots, intermediate]
  Tensor outputs;    // [slots, hidden]
};

// Where a layer's keys and values are: which group of its pool, and which layer of that group.
struct KvPlace {
  int32_t group = 0;
  int32_t index = 0;
};

// The paged keys and values of one model. Block ids are shared: a block of a sequence is the block
// of that id in every group that is not windowed. Windowed groups have fewer blocks, which are
// given only to the blocks that rows still see.
struct KvPool {
  std::vector<KvGroup> groups;  // of as many tokens a block
  std::vector<KvPlace> layers;  // the model's layers in their order
  // The block of windowed groups that belongs to each block, in the backend's memory; null: no
  // group is windowed.
  int32_t* window_of = nullptr;

  int32_t block_tokens() const { return groups.front().block_tokens; }
};

// Bounds on the chunks of prompts in a batch, so that the chunks do not decide how the other
// sequences, which decode or verify, are computed. A range with more than max_decode_len rows
// counts as a chunk.
struct ChunkBounds {
  int32_t num_seqs = 0;  // at most this many chunks; 0: none, and the other members are unused
  int32_t max_decode_len = 0;  // longest range of a sequence that decodes or verifies
  int32_t num_rows = 0;        // rows of all chunks together, at most
  int32_t min_len = 0;         // rows of the shortest chunk, at least
  // context_len of all chunks together, at most. Memory is shared out by it: with a number that is
  // too small the chunks' results are wrong.
  int64_t num_keys = 0;
};

// A ragged batch of token ranges: prefill chunks, decode steps, verifications and catch-ups alike.
// Sequence s has the rows query_start[s] .. query_start[s+1]; its last row is at absolute position
// context_len[s] - 1 and rows are consecutive positions. In backend memory; the host knows only the
// counts, and on a device these are upper bounds: a row past the last has row_seq -1 and stores
// nothing, a sequence without rows has query_start[s] == query_start[s + 1].
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
  // The same of windowed groups; entries before a row's window may name blocks of others.
  const int32_t* window_table = nullptr;
  int32_t max_blocks = 0;
  const int32_t* logits_rows = nullptr;  // [num_logits] rows whose logits are wanted
  // A prefix mask: a row sees the keys before max(position + 1, prefix_len[s]), as far as the
  // context goes. [num_seqs]; null: causal attention.
  const int32_t* prefix_len = nullptr;
  // Where rows stand: the rows of the rotary tables, or of learned positions, that are theirs.
  // [num_rows]; null: their positions.
  const int32_t* turns = nullptr;
  // The same a second time, of models whose rows stand in two orders. [num_rows]; null: in one.
  const int32_t* second_positions = nullptr;
};

// Rows first_row .. first_row + num_rows - 1 of a batch, as a batch of the same sequences, some of
// them without rows (batch_slice.h). The arrays are the caller's, in backend memory.
struct BatchSlice {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t* query_start = nullptr;  // [num_seqs + 1]
  int32_t* context_len = nullptr;  // [num_seqs]
};

// Parts of one width of every row, one after another: head h begins at column first + h * stride.
struct HeadColumns {
  Tensor rows;
  int64_t first = 0;
  int64_t stride = 0;
  int64_t width = 0;
};
// HeadLinear's weights of a head begin at a multiple of this many rows; those between are unused.
constexpr int64_t kHeadRowsMultiple = 16;
constexpr int64_t PaddedHeadRows(int64_t rows) {
  return (rows + kHeadRowsMultiple - 1) / kHeadRowsMultiple * kHeadRowsMultiple;
}

// What attention does with the scores of a row, in this order.
struct AttentionRule {
  float scale = 1.0f;     // of a query's product with a key
  float soft_cap = 0.0f;  // score = soft_cap * tanh(score / soft_cap); 0: no
  // ALiBi: what is added to a score for each position that its key is later than the row (mostly
  // none: a negative number of them). [num_heads] fp32 in the backend's memory; null: no.
  const float* slopes = nullptr;
  int32_t window = 0;  // a row sees no keys before its position - window + 1; 0: all
  // A row sees no keys before the chunk that it lies in: before the last multiple of this number
  // that is not after its position; 0: all.
  int32_t chunk = 0;
  // Attention sinks: a score of each head that takes its share of the softmax without having a
  // value. [num_heads] fp32 in the backend's memory; null: none.
  const float* sinks = nullptr;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Between BeginPass and EndPass the arrays of `batch` (both block tables too) and the keys and
  // values before its rows keep what they hold when the stream comes to the pass, so that a backend
  // may compute once what the layers' calls of PagedAttention have in common, and read it early. A
  // pass is enqueued as a whole: in one recording, or none. Outside a pass each call computes it.
  virtual void BeginPass(const BatchView& /*batch*/) {}
  virtual void EndPass() {}
  // Fills the slice's arrays from the batch's, before BeginPass of the slice. May be recorded.
  virtual void LaySlice(const BatchView& batch, const BatchSlice& slice) = 0;

  // out[i] = table[tokens[i]]; table and out of one dtype. A token beyond the table reads row 0: a
  // draft may have fewer rows than its target has tokens. out: [num_rows, hidden]
  virtual void Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) = 0;
  // The same of a table of which this rank has a part: zeros for the rows that it has not.
  virtual void EmbedPart(const TablePart& part, const int32_t* tokens, const Tensor& out) = 0;

  // x.residual = x.residual * x.residual_scale + x.delta (unless that is empty); x.rows =
  // x.norm(x.residual). x.rows may be x.residual. All of one activation dtype.
  virtual void AddNorm(const NormedRows& x) = 0;

  // residual += delta. Both [num_rows, hidden]
  virtual void Add(const Tensor& residual, const Tensor& delta) = 0;

  // Norms columns [first_column, first_column + num_columns) of qkv in place, each `width` of them
  // by themselves. The weight has `width` elements, which all parts share, or one for each column,
  // or is empty: ones.
  virtual void NormHeads(const Tensor& qkv, int64_t first_column, int64_t num_columns,
                         int64_t width, const Norm& norm) = 0;

  // A norm (kRms) over heads of which several ranks hold equally many, in two steps. A row of
  // sums, [num_rows, 2] fp32, becomes the sums of the squares of the rank's queries and of its
  // keys. Once the ranks have added them up, both are normed in place by the means over `ranks`
  // times the columns of `norms`.
  virtual void SumHeadSquares(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums) = 0;
  virtual void NormHeadsBySums(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums,
                               int ranks) = 0;

  // out = x W^T + b. x: [num_rows, cols]; out: [num_rows, rows] in x's dtype or fp32.
  virtual void Linear(const Tensor& x, const LinearWeight& weight, const Tensor& out) = 0;

  // The same of normed rows; out may be x.delta. Composed of AddNorm and Linear unless a backend
  // fuses it.
  virtual void NormLinear(const NormedRows& x, const LinearWeight& weight, const Tensor& out);

  // Adds x W^T to the stream whose norm `sum` is: it becomes sum.delta, for the product that takes
  // `sum` to add, and sum.squares becomes empty. A backend may add it to the residual itself if
  // there are squares: then they and the rows become what they are to be, and the delta empty.
  virtual void LinearAdd(const Tensor& x, const LinearWeight& weight, NormedRows& sum);

  // Squares become zero, where LinearAdd adds to them. int64, any shape.
  virtual void ClearSquares(const Tensor& /*squares*/) {}

  // Rotates the q and k parts of qkv ([num_rows, (num_heads + 2 num_kv_heads) * head_dim];
  // rotate-half pairing, within each half where there are second positions) at the rows' positions,
  // multiplies q by the table's factors and leaves it in place, and stores k and v into layer
  // `layer` of the group.
  virtual void QkvRopeStore(const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                            const KvGroup& kv, int32_t layer) = 0;

  // The same of normed heads. Composed of NormHeads and QkvRopeStore unless a backend fuses it.
  virtual void NormQkvRopeStore(const Tensor& qkv, const HeadNorms& norms, const RopeTable& rope,
                                const BatchView& batch, const KvGroup& kv, int32_t layer);

  // The same of a product: qkv = x W^T, then QkvRopeStore; what is left of keys and values in qkv
  // is not said. Composed of Linear and QkvRopeStore unless a backend fuses it.
  virtual void LinearRopeStore(const Tensor& x, const LinearWeight& weight, const Tensor& qkv,
                               const RopeTable& rope, const BatchView& batch, const KvGroup& kv,
                               int32_t layer);
  // The same of normed rows. Composed of NormLinear and QkvRopeStore unless a backend fuses it.
  virtual void NormLinearRopeStore(const NormedRows& x, const LinearWeight& weight,
                                   const Tensor& qkv, const RopeTable& rope, const BatchView& batch,
                                   const KvGroup& kv, int32_t layer);

  // Attention of the q part of qkv (of a group of latents: of queries alone, [num_rows, num_heads *
  // head_dim]) over layer `layer` of the group, causal but for prefix masks; rows after the last
  // become zeros. out: [num_rows, num_heads * value_dim()]
  virtual void PagedAttention(const Tensor& qkv, const BatchView& batch, const KvGroup& kv,
                              int32_t layer, const AttentionRule& rule, const Tensor& out) = 0;

  // out = x W^T of each head by itself: the first out.width of every PaddedHeadRows(out.width) rows
  // of the weight, which is plain and without a bias. All of one activation dtype.
  virtual void HeadLinear(const HeadColumns& x, const LinearWeight& weight,
                          const HeadColumns& out) = 0;

  // Turns the last 2 * pairs elements of each head of q ([num_rows, num_heads * any width]) into
  // the last ones of each head of `queries` ([num_rows, num_heads * kv.head_dim]), whose first
  // latent_dim elements stay, and stores `latents` ([num_rows, kv.head_dim], whose last elements
  // turn likewise) into layer `layer` of the group.
  virtual void LatentRopeStore(const Tensor& q, const Tensor& latents, const RopeTable& rope,
                               const BatchView& batch, const KvGroup& kv, int32_t layer,
                               const Tensor& queries) = 0;

  // out = activation(in), [num_rows, intermediate] both; or, of in [num_rows, 2 * intermediate] =
  // (gate, up), out = activation(gate) * up.
  virtual void Activate(Activation activation, const Tensor& in, const Tensor& out) = 0;

  // out = down(Activate(in(x))). inner, activated: scratch for what the first product and Activate
  // give. Composed of Linear and Activate unless a backend fuses it.
  virtual void Mlp(const Tensor& x, const LinearWeight& in_weight, Activation activation,
                   const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
                   const Tensor& out);
  // The same of normed rows; out may be x.delta. Composed of AddNorm and Mlp unless a backend fuses
  // it.
  virtual void NormMlp(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
                       const LinearWeight& down_weight, const Tensor& inner,
                       const Tensor& activated, const Tensor& out);

  // The same with LinearAdd of the last product. Composed of NormMlp unless a backend fuses it.
  virtual void NormMlpAdd(const NormedRows& x, const LinearWeight& in_weight, Activation activation,
                          const LinearWeight& down_weight, const Tensor& inner,
                          const Tensor& activated, NormedRows& sum);

  // Chooses the experts of each row by its scores, [num_rows, num_experts] fp32. correction:
  // [num_experts] fp32, or empty.
  virtual void Route(const Tensor& scores, const Tensor& correction, const RoutingRule& rule,
                     const ExpertChoice& out) = 0;

  // out = the sum over a row's experts of weight * down(Activate(in(x))), added in the order of the
  // choice. A choice that names none of the weights' experts adds nothing. Reads only the weights
  // of chosen experts. x, out: [num_rows, hidden]
  virtual void Experts(const Tensor& x, const ExpertChoice& choice, const ExpertWeights& weights,
                       const ExpertScratch& scratch, const Tensor& out) = 0;

  // sum += sigmoid(gate) * x, or sum += x if gate is empty. gate: [num_rows, 1] fp32
  virtual void AddGated(const Tensor& sum, const Tensor& gate, const Tensor& x) = 0;

  // logits = logits * scale, then cap * tanh(logits / cap) unless cap is 0. fp32
  virtual void CapLogits(const Tensor& logits, float scale, float cap) = 0;

  // out[i] = x[rows[i]], or x[0] if x has no such row. out: [num_out, cols]
  virtual void GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) = 0;

  // Copies `tokens` leading tokens of block `from` to block `to`, all layers and heads of all
  // groups.
  virtual void CopyBlock(const KvPool& pool, int32_t from, int32_t to, int32_t tokens) = 0;

  // Call before the first Sample or VerifyAndAccept, so that these allocate nothing: no call will
  // have more rows at once or a larger vocabulary.
  virtual void ReserveSampling(int32_t /*max_rows*/, int64_t /*vocab*/) {}

  // Draws one token per row: out[i] belongs to rows[i]. A draw is the arg-max of filtered
  // log-probability + GumbelNoise at position history.num_tokens + num_ahead; a greedy row needs no
  // noise. The rows, the data they point to and `out` are in backend memory, so the host knows only
  // an upper bound of their number: an inert row (null logits) gets token -1.
  virtual void Sample(std::span<const SampleRow> rows, int64_t vocab,
                      std::span<SampledToken> out) = 0;

  // Ratio acceptance (arXiv 2302.01318), one row per sequence: accepts drafts while u < p/q, else
  // draws from max(p - q, 0); a bonus token from the last row if all were accepted. With a
  // threshold: accepts drafts while p is at least that, and then draws from p. The rows are in
  // backend memory; an inert one (null slot) is skipped.
  virtual void VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) = 0;
};

}  // namespace tandem::ops
