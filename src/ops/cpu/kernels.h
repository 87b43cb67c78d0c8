// The kernels of one instruction set, as a table of plain functions over plain pointers. One source
// (the .inc files) is compiled once per instruction set; each gives one table. Kernels are pure:
// they touch what their job names, on any thread, and never allocate.
//
// This header is seen by files compiled for newer CPUs than the program may run on, so neither it
// nor they include anything that defines inline functions or templates other files share: the
// linker could keep the copy with the newer instructions for all.
#pragma once

#include <cstdint>

namespace tandem::ops::cpu {

// What lies in memory. Activations and plain weights are of the first three; keys and values are of
// the activations' type or of 8 bits.
enum class Element : uint8_t { kF32, kF16, kBF16, kFp8, kI8 };

// Packed weights lie in panels of 16 outputs, their inputs padded with zeros to a multiple of 32:
// bf16 [outputs/16][inputs/2][16][2] (pairs, as the dot-product instructions and AMX tiles want
// them), fp16 and fp32 [outputs/16][inputs][16].
constexpr int64_t kPanelOutputs = 16;
constexpr int64_t kInputsMultiple = 32;

// The elements of quantized weights.
enum class Quantized : uint8_t { kNone, kFp8, kInt8, kInt4, kFp4 };

// Quantized panels are streams of groups, so that a product reads memory in one direction. A group
// has `inputs` inputs of 16 outputs (the last group is padded): the elements, then 16 scales (fp32)
// and 16 zero points (bytes), if groups have them. Of the elements, inputs that a kernel takes
// together lie together:
//   fp8          [inputs/2][16][2]
//   int8         [inputs/4][16][4], each plus 128
//   int4, fp4    [inputs/8][16] words of 32 bits: of 8 inputs the even ones in the lower half, the
//                odd ones in the upper half, so that shifting a word by 0, 4, 8 and 12 bits brings
//                each pair of inputs to the lowest 4 bits of both halves
// Products sum over a group, multiply by its scale and add that to the sum of the groups before.
struct QuantLayout {
  Quantized elements = Quantized::kNone;
  bool round_inputs = false;  // inputs are rounded to int8: each row by its maximum in a group
  int64_t inputs = 0;         // of a group; a multiple of 16, at most 128 or kRoundedGroupInputs
  int64_t group_bytes = 0;    // of a panel
  int64_t scales_at = 0;      // where they are in a group; 0: it has none, each output has one
  int64_t zeros_at = 0;       // 0: the zero is 0, and 8 of int4
};
// The longest group of int8 with one scale per output, where kernels multiply integers: most of L1
// holds two panels of it. An int32 holds its sum.
constexpr int64_t kRoundedGroupInputs = 1024;
// Largest number of rows in one pass of Linear: larger batches are split, so that the packed
// activations stay small.
constexpr int64_t kMaxLinearRows = 512;
// Up to this many rows every thread packs the activations for itself, which saves a barrier.
constexpr int64_t kSmallLinearRows = 16;
// Scratch of one thread for linear_panels, in bytes.
constexpr int64_t kLinearScratchBytes = int64_t{1} << 20;
// Keys of one attention tile; tiles start at position 0.
constexpr int64_t kTileKeys = 32;
// Query rows (positions * heads) one attention job may have.
constexpr int64_t kMaxQueryRows = 128;

struct LinearJob {
  Element element = Element::kF32;    // of activations and weights
  bool out_f32 = false;               // out is fp32 whatever `element` is
  int64_t num_rows = 0;               // at most kMaxLinearRows
  int64_t inputs = 0;                 // padded
  int64_t outputs = 0;                // not padded
  const void* activations = nullptr;  // as pack_activations wrote them
  const void* weights = nullptr;      // packed panels
  QuantLayout quant = {};             // of the weights
  const float* scales = nullptr;      // of each output's sum, [outputs] or null
  const float* bias = nullptr;        // [outputs] or null
  void* out = nullptr;                // [num_rows, out_stride]
  int64_t out_stride = 0;
};

struct PackJob {
  Element element = Element::kF32;
  const void* x = nullptr;  // [num_rows, inputs], rows x_stride elements apart
  int64_t x_stride = 0;
  int64_t num_rows = 0;
  int64_t inputs = 0;         // of x
  int64_t padded_inputs = 0;  // of the packed copy
  void* packed = nullptr;
  QuantLayout quant = {};          // of the weights
  const float* factors = nullptr;  // of x's columns, or null
  const int32_t* order = nullptr;  // input i is column order[i] of x; null: i
};

// One head of queries, keys or values on its way to where it is kept.
struct HeadJob {
  Element element = Element::kF32;  // of `in`
  const void* in = nullptr;         // [head_dim]
  int64_t head_dim = 0;
  int64_t turned = 0;          // the first elements, which are rotated, i with i + turned / 2
  const float* cos = nullptr;  // [turned / 2] each
  const float* sin = nullptr;
  Element stored = Element::kF32;  // `element` or of 8 bits
  float factor = 1.0f;             // what values are multiplied with before they are stored
  void* out = nullptr;             // [head_dim]; may be `in` if the elements are the same
};

// Attention of `num_positions` consecutive positions and `num_heads` query heads that share one kv
// head.
struct AttentionJob {
  // Keys that the index-th position sees, no fewer than the one before. Inlined, since each
  // instruction set is compiled with code of its own.
  [[gnu::always_inline]] int64_t NumKeys(int64_t index) const {
    const int64_t causal = int64_t{first_position} + index + 1;
    return causal > prefix_len ? causal : prefix_len;
  }

  // The first key that it sees, no earlier than that of the position before.
  [[gnu::always_inline]] int64_t FirstKey(int64_t index) const {
    const int64_t position = int64_t{first_position} + index;
    if (chunk > 0) return position - position % chunk;
    return window == 0 || position < window ? 0 : position + 1 - window;
  }

  Element element = Element::kF32;
  const void* q =
      nullptr;  // first row's first head; heads are head_dim apart, rows q_stride elements
  int64_t q_stride = 0;
  void* out = nullptr;  // as q: heads are value_dim apart, rows out_stride
  int64_t out_stride = 0;
  Element cached = Element::kF32;  // of keys and values: `element` or of 8 bits
  // Key of position p: keys + block_table[p / block_tokens] * block_stride + (p % block_tokens) *
  // head_dim
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t block_stride = 0;  // in elements
  const int32_t* block_table = nullptr;
  int32_t block_tokens = 0;
  int32_t head_dim = 0;
  int32_t value_dim = 0;  // at most head_dim
  int32_t num_heads = 0;
  int32_t num_positions = 0;  // num_positions * num_heads <= kMaxQueryRows
  int32_t first_position = 0;
  int32_t prefix_len = 0;    // keys that every row sees, also those after its position
  float scale = 1.0f;        // of the products of queries and stored keys
  float value_scale = 1.0f;  // of stored values
  float soft_cap = 0.0f;     // as in AttentionRule
  int32_t window = 0;
  int32_t chunk = 0;
  const float* slopes = nullptr;  // [num_heads] or null
  const float* sinks = nullptr;   // [num_heads] or null
  float* scratch = nullptr;       // attention_scratch_floats(head_dim)
};

// residual = residual * residual_scale + delta; out = norm(residual).
struct NormJob {
  Element element = Element::kF32;
  bool subtract_mean = false;
  void* residual = nullptr;
  const void* delta = nullptr;   // or null
  const void* weight = nullptr;  // null: ones
  const void* bias = nullptr;    // or null
  float residual_scale = 1.0f;
  float epsilon = 0.0f;
  float weight_offset = 0.0f;
  int64_t width = 0;
  void* out = nullptr;  // may be residual
};

// A sum of rows, each times its weight.
struct SumJob {
  Element element = Element::kF32;
  const void* const* rows = nullptr;  // [num_rows], each [width]
  const float* weights = nullptr;     // [num_rows]
  int64_t num_rows = 0;               // at least 1
  int64_t width = 0;
  void* out = nullptr;  // [width]
};

// As ops::Activation.
enum class Function : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kClampedSwiglu };

// out[i] = function(in[i]), times up[i] unless `up` is null.
struct ActivateJob {
  Function function = Function::kSilu;
  Element element = Element::kF32;
  const void* in = nullptr;
  const void* up = nullptr;
  int64_t count = 0;
  void* out = nullptr;
  float limit = 0.0f;  // of kClampedSwiglu, which has an `up`
};

struct CpuKernels {
  const char* name;

  // Packs row blocks [begin, end) of num_linear_blocks(job).
  int64_t (*num_linear_blocks)(const PackJob& job);
  void (*pack_activations)(const PackJob& job, int64_t block_begin, int64_t block_end);
  // Computes panels [begin, end) of the product for all rows.
  void (*linear_panels)(const LinearJob& job, int64_t panel_begin, int64_t panel_end,
                        float* scratch);

  void (*norm)(const NormJob& job);  // of one row
  // sum[i] += x[i]
  void (*add)(Element element, void* sum, const void* x, int64_t count);
  // out = the sum over i of weights[i] * rows[i], added in this order; out may be a row
  void (*weighted_sum)(const SumJob& job);
  void (*store_head)(const HeadJob& job);
  void (*activate)(const ActivateJob& job);
  // x[i] = x[i] * scale, then cap * tanh(x[i] / cap) unless cap is 0
  void (*cap)(float* x, int64_t count, float scale, float cap);

  int64_t (*attention_scratch_floats)(int64_t head_dim);
  void (*attention)(const AttentionJob& job);

  // Reads `bytes` (a multiple of 4096) and returns a value that depends on all of them.
  uint64_t (*read_stream)(const void* data, int64_t bytes);
  // Runs `steps` rounds of the innermost matrix instruction on registers alone; returns how many
  // multiply-adds (as 2 operations each) that was.
  double (*matrix_burst)(Element element, int64_t steps);

  // Rows of one linear_panels call that suit its blocks best; at most kMaxLinearRows.
  int64_t linear_rows = kMaxLinearRows;
  // Products with weights of integers are computed in integers: inputs may be rounded to int8.
  bool rounds_inputs = false;
};

// isa.h decides which of these may run.
extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;
extern const CpuKernels kAvx512Kernels;
extern const CpuKernels kAvx512Bf16Kernels;
extern const CpuKernels kAmxKernels;

}  // namespace tandem::ops::cpu
