#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "ops/batch_slice.h"
#include "ops/cpu/host_scratch.h"
#include "ops/cpu/pack.h"
#include "ops/cpu/pack_groups.h"
#include "ops/cpu/pieces.h"
#include "ops/cpu/row_access.h"
#include "tensor/convert.h"

namespace tandem::ops::cpu {
namespace {

// Panels of gate, and as many of up, that a thread computes before it joins them: 256 rows of both
// in bf16 are 256 KB, which stay in L2 together with the sums.
constexpr int64_t kGatedPanels = 16;
constexpr int64_t kGatedOutputs = kGatedPanels * kPanelOutputs;
constexpr int64_t kGatedScratchBytes =
    2 * kMaxLinearRows * kGatedOutputs * static_cast<int64_t>(sizeof(float));

NormJob JobOf(const Norm& norm, DType dtype) {
  NormJob job;
  job.element = ElementOf(dtype);
  job.subtract_mean = norm.kind == Norm::Kind::kLayer;
  job.weight = norm.weight.data;
  job.bias = norm.bias.data;
  job.epsilon = norm.epsilon;
  job.weight_offset = norm.weight_offset;
  return job;
}

// The two enums have the same values; the kernels' header includes nothing.
Function FunctionOf(Activation activation) {
  static_assert(static_cast<int>(Function::kSilu) == static_cast<int>(Activation::kSilu) &&
                static_cast<int>(Function::kGelu) == static_cast<int>(Activation::kGelu) &&
                static_cast<int>(Function::kGeluTanh) == static_cast<int>(Activation::kGeluTanh) &&
                static_cast<int>(Function::kRelu) == static_cast<int>(Activation::kRelu) &&
                static_cast<int>(Function::kClampedSwiglu) ==
                    static_cast<int>(Activation::kClampedSwiglu));
  return static_cast<Function>(activation);
}

constexpr int64_t kWidened = 256;

// Calls run(begin, values) with columns first + begin .. of a row as fp32, kWidened of them at a
// time; where it returns true they are written back.
template <typename Run>
void ForEachWidened(const Tensor& x, int64_t row, int64_t first, int64_t count, const Run& run) {
  std::array<float, kWidened> values;
  const auto size = static_cast<int64_t>(SizeOf(x.dtype));
  for (int64_t begin = 0; begin < count; begin += kWidened) {
    const int64_t part = std::min(kWidened, count - begin);
    const Tensor stored = {RowOf(x, row) + (first + begin) * size, x.dtype, {part}, x.device};
    const Tensor widened = {values.data(), DType::kF32, {part}, x.device};
    ConvertElements(stored, widened);
    if (run(begin, std::span(values).first(static_cast<size_t>(part)))) {
      ConvertElements(widened, stored);
    }
  }
}

double Operations(const LinearJob& job) {
  return 2.0 * static_cast<double>(job.num_rows * job.inputs * job.outputs);
}

}  // namespace

CpuOps::CpuOps(const CpuKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), sampler_(pool) {
  linear_scratch_ = HostScratch(static_cast<size_t>(kLinearScratchBytes) * pool.num_threads());
  gated_scratch_ = HostScratch(static_cast<size_t>(kGatedScratchBytes) * pool.num_threads());
}

void CpuOps::LaySlice(const BatchView& batch, const BatchSlice& slice) {
  for (int32_t seq = 0; seq <= batch.num_seqs; ++seq) FillSlice(batch, slice, seq);
}

void CpuOps::Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) {
  GatherRows(table, tokens, out);
}

void CpuOps::EmbedPart(const TablePart& part, const int32_t* tokens, const Tensor& out) {
  TANDEM_CHECK(part.rows.dtype == out.dtype && part.rows.dim(1) == out.dim(1),
               "rows of another kind");
  const auto bytes = static_cast<size_t>(RowBytes(out));
  ForEachPiece(pool_, out.dim(0), 1, static_cast<double>(out.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t i = piece.begin; i < piece.end; ++i) {
                   const int64_t row = (tokens[i] < part.num_rows ? tokens[i] : 0) - part.first;
                   if (row >= 0 && row < part.rows.dim(0)) {
                     std::memcpy(RowOf(out, i), RowOf(part.rows, row), bytes);
                   } else {
                     std::memset(RowOf(out, i), 0, bytes);
                   }
                 }
               });
}

void CpuOps::GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) {
  TANDEM_CHECK(x.dtype == out.dtype && x.dim(1) == out.dim(1), "rows of another kind");
  const int64_t bytes = RowBytes(x);
  ForEachPiece(pool_, out.dim(0), 1, static_cast<double>(out.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t i = piece.begin; i < piece.end; ++i) {
                   const int64_t row = rows[i] < x.dim(0) ? rows[i] : 0;
                   std::memcpy(RowOf(out, i), RowOf(x, row), static_cast<size_t>(bytes));
                 }
               });
}

void CpuOps::AddNorm(const NormedRows& x) {
  const Norm& norm = x.norm;
  TANDEM_CHECK(x.residual.dtype == x.rows.dtype && norm.weight.dtype == x.rows.dtype,
               "the types differ");
  TANDEM_CHECK(x.residual_scale == 1.0f || !x.delta.empty(), "only what a delta is added to");
  NormJob job = JobOf(norm, x.rows.dtype);
  job.width = x.residual.dim(1);
  job.residual_scale = x.residual_scale;
  ForEachPiece(pool_, x.residual.dim(0), 1, 10.0 * static_cast<double>(x.residual.NumElements()),
               [&](const Piece& piece) {
                 NormJob own = job;
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   own.residual = RowOf(x.residual, row);
                   own.delta = x.delta.empty() ? nullptr : RowOf(x.delta, row);
                   own.out = RowOf(x.rows, row);
                   kernels_.norm(own);
                 }
               });
}

void CpuOps::Add(const Tensor& residual, const Tensor& delta) {
  TANDEM_CHECK(residual.dtype == delta.dtype && residual.dim(1) == delta.dim(1),
               "what is added has another shape");
  ForEachPiece(pool_, residual.dim(0), 1, 3.0 * static_cast<double>(residual.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   kernels_.add(ElementOf(residual.dtype), RowOf(residual, row), RowOf(delta, row),
                                residual.dim(1));
                 }
               });
}

void CpuOps::NormHeads(const Tensor& qkv, int64_t first_column, int64_t num_columns, int64_t width,
                       const Norm& norm) {
  TANDEM_CHECK(num_columns % width == 0 && first_column + num_columns <= qkv.dim(1),
               "heads beyond the row");
  const auto size = static_cast<int64_t>(SizeOf(qkv.dtype));
  const bool shared = norm.weight.NumElements() == width;
  ForEachPiece(pool_, qkv.dim(0), 1, 10.0 * static_cast<double>(qkv.dim(0) * num_columns),
               [&](const Piece& piece) {
                 NormJob job = JobOf(norm, qkv.dtype);
                 job.width = width;
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   for (int64_t column = 0; column < num_columns; column += width) {
                     job.residual = RowOf(qkv, row) + (first_column + column) * size;
                     job.out = job.residual;
                     if (!shared && !norm.weight.empty()) {
                       job.weight = static_cast<const std::byte*>(norm.weight.data) + column * size;
                     }
                     kernels_.norm(job);
                   }
                 }
               });
}

void CpuOps::SumHeadSquares(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums) {
  const auto sum = [&](int64_t row, int64_t first, int64_t count) {
    float squares = 0.0f;
    ForEachWidened(qkv, row, first, count, [&](int64_t, std::span<float> values) {
      for (const float value : values) squares += value * value;
      return false;
    });
    return squares;
  };
  const int64_t queries = norms.queries.count, keys = norms.keys.count;
  ForEachPiece(pool_, qkv.dim(0), 1, 4.0 * static_cast<double>(qkv.dim(0) * (queries + keys)),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   auto* const out = reinterpret_cast<float*>(RowOf(sums, row));
                   out[0] = sum(row, 0, queries);
                   out[1] = sum(row, queries, keys);
                 }
               });
}

void CpuOps::NormHeadsBySums(const Tensor& qkv, const HeadNorms& norms, const Tensor& sums,
                             int ranks) {
  const auto size = static_cast<int64_t>(SizeOf(qkv.dtype));
  const auto apply = [&](int64_t row, int64_t first, const HeadNorms::Columns& columns, float sum) {
    const Norm& norm = columns.norm;
    TANDEM_CHECK(norm.kind == Norm::Kind::kRms && norm.weight.NumElements() == columns.count,
                 "ranks norm heads by their root mean square, with a weight for each column");
    const auto count = static_cast<float>(ranks * columns.count);
    const float inverse = 1.0f / std::sqrt(sum / count + norm.epsilon);
    std::array<float, kWidened> weight;
    ForEachWidened(qkv, row, first, columns.count, [&](int64_t begin, std::span<float> values) {
      const auto part = static_cast<int64_t>(values.size());
      auto* const from = static_cast<std::byte*>(norm.weight.data) + begin * size;
      ConvertElements({from, norm.weight.dtype, {part}, {}},
                      {weight.data(), DType::kF32, {part}, {}});
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] *= inverse * (weight[i] + norm.weight_offset);
      }
      return true;
    });
  };
  const auto& [queries, keys] = norms;
  ForEachPiece(pool_, qkv.dim(0), 1,
               10.0 * static_cast<double>(qkv.dim(0) * (queries.count + keys.count)),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   const auto* const sum = reinterpret_cast<const float*>(RowOf(sums, row));
                   apply(row, 0, queries, sum[0]);
                   apply(row, queries.count, keys, sum[1]);
                 }
               });
}

void CpuOps::Activate(Activation activation, const Tensor& in, const Tensor& out) {
  ActivateRows(activation, /*limit=*/0.0f, in, out);
}

void CpuOps::ActivateRows(Activation activation, float limit, const Tensor& in, const Tensor& out) {
  const int64_t width = out.dim(1);
  const bool gated = in.dim(1) != width;
  TANDEM_CHECK(in.dtype == out.dtype && in.dim(1) == (gated ? 2 : 1) * width,
               "the input is neither as wide as the output nor twice as wide");
  // Pieces within a row, so that one row of a large model is split too.
  constexpr int64_t kPiece = 1024;
  const int64_t row_pieces = (width + kPiece - 1) / kPiece;
  const auto size = static_cast<int64_t>(SizeOf(out.dtype));
  ForEachPiece(pool_, out.dim(0) * row_pieces, 1, 30.0 * static_cast<double>(out.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t i = piece.begin; i < piece.end; ++i) {
                   const int64_t row = i / row_pieces;
                   const int64_t first = i % row_pieces * kPiece;
                   const std::byte* from = RowOf(in, row) + first * size;
                   kernels_.activate({.function = FunctionOf(activation),
                                      .element = ElementOf(out.dtype),
                                      .in = from,
                                      .up = gated ? from + width * size : nullptr,
                                      .count = std::min(kPiece, width - first),
                                      .out = RowOf(out, row) + first * size,
                                      .limit = limit});
                 }
               });
}

void CpuOps::CapLogits(const Tensor& logits, float scale, float cap) {
  TANDEM_CHECK(logits.dtype == DType::kF32, "logits are fp32");
  constexpr int64_t kGrain = 4096;
  ForEachPiece(pool_, logits.NumElements(), kGrain,
               20.0 * static_cast<double>(logits.NumElements()), [&](const Piece& piece) {
                 kernels_.cap(logits.As<float>() + piece.begin, piece.end - piece.begin, scale,
                              cap);
               });
}

void CpuOps::ReserveSampling(int32_t /*max_rows*/, int64_t vocab) { sampler_.Reserve(vocab); }

void CpuOps::Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out) {
  sampler_.Sample(rows, vocab, out);
}

void CpuOps::VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) {
  sampler_.VerifyAndAccept(rows, vocab);
}

void CpuOps::ReserveLinear(const LinearWeight& weight) {
  const int64_t inputs = PackedInputs(weight.cols, LayoutOf(weight.scheme, weight.cols, kernels_));
  if (inputs <= reserved_inputs_) return;
  const int64_t rows = std::max(kMaxLinearRows, pool_.num_threads() * kSmallLinearRows);
  activations_ = HostScratch(static_cast<size_t>(rows * inputs) * sizeof(float));
  reserved_inputs_ = inputs;
}

float* CpuOps::LinearScratch(int thread) const {
  return linear_scratch_.As<float>() + thread * (kLinearScratchBytes / int64_t{sizeof(float)});
}

void CpuOps::Linear(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  TANDEM_CHECK(!weight.scheme.is_plain() || x.dtype == weight.dtype,
               "activations and weights differ in type");
  TANDEM_CHECK(out.dtype == x.dtype || out.dtype == DType::kF32, "out is x's type or fp32");
  TANDEM_CHECK(x.dim(1) == weight.cols && out.dim(1) == weight.rows && x.dim(0) == out.dim(0),
               "shapes do not fit the weight");
  ReserveLinear(weight);
  const int64_t step = RowsOfPass(x.dim(0));
  for (int64_t row = 0; row < x.dim(0); row += step) {
    LinearRows(x, row, std::min(step, x.dim(0) - row), weight, out);
  }
}

// Each pass reads the weights again: use as few passes as possible, of nearly equal size.
int64_t CpuOps::RowsOfPass(int64_t num_rows) const {
  constexpr int64_t kGrain = 32;  // two row tiles, which the tile unit takes together
  const int64_t most = kernels_.linear_rows;
  const int64_t passes = std::max<int64_t>((num_rows + most - 1) / most, 1);
  const int64_t rows = (num_rows + passes - 1) / passes;
  return (rows + kGrain - 1) / kGrain * kGrain;
}

PackJob CpuOps::PackingOf(const Tensor& x, int64_t row_begin, int64_t num_rows,
                          const LinearWeight& weight) {
  PackJob pack;
  pack.element = ElementOf(x.dtype);
  pack.x = RowOf(x, row_begin);
  pack.x_stride = weight.cols;
  pack.num_rows = num_rows;
  pack.inputs = weight.cols;
  pack.quant = LayoutOf(weight.scheme, weight.cols, kernels_);
  pack.padded_inputs = PackedInputs(weight.cols, pack.quant);
  pack.packed = activations_.data();
  pack.factors = weight.input_factors.As<float>();
  pack.order = weight.input_order.As<int32_t>();
  return pack;
}

// One copy, for all threads.
void CpuOps::PackForAll(const PackJob& pack) {
  const int64_t blocks = kernels_.num_linear_blocks(pack);
  ForEachPiece(
      pool_, blocks, 1, 10.0 * static_cast<double>(pack.num_rows * pack.padded_inputs),
      [&](const Piece& piece) { kernels_.pack_activations(pack, piece.begin, piece.end); });
}

void CpuOps::LinearRows(const Tensor& x, int64_t row_begin, int64_t num_rows,
                        const LinearWeight& weight, const Tensor& out) {
  const PackJob pack = PackingOf(x, row_begin, num_rows, weight);
  LinearJob job = ProductOf(pack, weight);
  job.out_f32 = out.dtype == DType::kF32;
  job.out = RowOf(out, row_begin);
  job.out_stride = out.dim(1);

  const int64_t panels = NumPanels(weight.rows);
  const double operations = Operations(job);
  constexpr int64_t kGrain = 4;           // panels that a kernel reads side by side
  constexpr int64_t kManyRowsGrain = 16;  // the same when they stay in L2 for many rows
  if (num_rows > kSmallLinearRows) {
    PackForAll(pack);
    ForEachPiece(pool_, panels, kManyRowsGrain, operations, [&](const Piece& piece) {
      kernels_.linear_panels(job, piece.begin, piece.end, LinearScratch(piece.thread));
    });
    return;
  }
  // Few rows: each thread packs its own copy, which saves waiting for the others.
  const int64_t blocks = kernels_.num_linear_blocks(pack);
  ForEachPiece(pool_, panels, kGrain, operations, [&](const Piece& piece) {
    float* copy = activations_.As<float>() + piece.thread * kSmallLinearRows * job.inputs;
    if (piece.first_of_thread) {
      PackJob own_pack = pack;
      own_pack.packed = copy;
      kernels_.pack_activations(own_pack, 0, blocks);
    }
    LinearJob own_job = job;
    own_job.activations = copy;
    kernels_.linear_panels(own_job, piece.begin, piece.end, LinearScratch(piece.thread));
  });
}

// A thread computes some rows of one head at a time, whose weights stay in its cache.
void CpuOps::HeadLinear(const HeadColumns& x, const LinearWeight& weight, const HeadColumns& out) {
  const int64_t head_rows = PaddedHeadRows(out.width);
  const int64_t num_heads = weight.rows / head_rows;
  const int64_t num_rows = x.rows.dim(0);
  TANDEM_CHECK(weight.scheme.is_plain() && weight.bias.bytes() == 0 &&
                   x.rows.dtype == weight.dtype && out.rows.dtype == weight.dtype,
               "the types differ");
  TANDEM_CHECK(
      x.width == weight.cols && num_heads * head_rows == weight.rows && out.rows.dim(0) == num_rows,
      "shapes do not fit the weight");
  const auto ends_at = [&](const HeadColumns& heads) {
    return heads.first + (num_heads - 1) * heads.stride + heads.width;
  };
  TANDEM_CHECK(ends_at(x) <= x.rows.dim(1) && ends_at(out) <= out.rows.dim(1),
               "heads beyond the row");
  ReserveLinear(weight);
  // Each thread has as many rows of the packed activations as LinearRows gives it for few rows, or
  // its share of all.
  constexpr int64_t kMost = 128;
  const int64_t share = kMaxLinearRows / pool_.num_threads() / kSmallLinearRows * kSmallLinearRows;
  const int64_t most = std::clamp(share, kSmallLinearRows, kMost);
  const int64_t chunks = (num_rows + most - 1) / most;
  const double operations = 2.0 * static_cast<double>(num_rows * num_heads * x.width * out.width);
  ForEachPiece(pool_, num_heads * chunks, 1, operations, [&](const Piece& piece) {
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t head = i / chunks, row = i % chunks * most;
      PackJob pack = PackingOf(x.rows, row, std::min(most, num_rows - row), weight);
      pack.x = At(x.rows, row * x.rows.dim(1) + x.first + head * x.stride);
      pack.x_stride = x.rows.dim(1);
      pack.packed = activations_.As<float>() + piece.thread * most * pack.padded_inputs;
      kernels_.pack_activations(pack, 0, kernels_.num_linear_blocks(pack));
      LinearJob job = ProductOf(pack, weight);
      job.outputs = out.width;
      job.weights = weight.data.As<std::byte>() +
                    NumPanels(head * head_rows) * PanelBytes(weight.cols, weight.dtype, pack.quant);
      job.out = At(out.rows, row * out.rows.dim(1) + out.first + head * out.stride);
      job.out_stride = out.rows.dim(1);
      kernels_.linear_panels(job, 0, NumPanels(out.width), LinearScratch(piece.thread));
    }
  });
}

void CpuOps::Mlp(const Tensor& x, const LinearWeight& in_weight, Activation activation,
                 const LinearWeight& down_weight, const Tensor& inner, const Tensor& activated,
                 const Tensor& out) {
  const int64_t rows = x.dim(0);
  const bool gated = in_weight.rows == 2 * activated.dim(1);
  if (!gated || !FusesGate(rows, activated.dim(1))) {
    return Ops::Mlp(x, in_weight, activation, down_weight, inner, activated, out);
  }
  const bool fits = !in_weight.scheme.is_plain() || x.dtype == in_weight.dtype;
  TANDEM_CHECK(fits && x.dtype == activated.dtype, "the types differ");
  TANDEM_CHECK(x.dim(1) == in_weight.cols && activated.dim(0) == rows,
               "shapes do not fit the weight");
  ReserveLinear(in_weight);
  const int64_t step = RowsOfPass(rows);
  for (int64_t row = 0; row < rows; row += step) {
    GatedRows(x, row, std::min(step, rows - row), in_weight, activation, activated);
  }
  Linear(activated, down_weight, out);
}

// Few rows stream the weights and leave small outputs; and every thread needs enough chunks to
// balance the load. Up has to begin at a panel boundary.
bool CpuOps::FusesGate(int64_t num_rows, int64_t width) const {
  return num_rows > kSmallLinearRows && width % kPanelOutputs == 0 &&
         width >= 2 * pool_.num_threads() * kGatedOutputs;
}

void CpuOps::GatedRows(const Tensor& x, int64_t row_begin, int64_t num_rows,
                       const LinearWeight& weight, Activation activation, const Tensor& activated) {
  const PackJob pack = PackingOf(x, row_begin, num_rows, weight);
  PackForAll(pack);
  const LinearJob both = ProductOf(pack, weight);
  const auto size = static_cast<int64_t>(SizeOf(x.dtype));
  const int64_t panel_bytes = PanelBytes(weight.cols, weight.dtype, pack.quant);
  // Copies the whole weight's panels [begin, begin + count) to rows of kGatedOutputs.
  const auto compute = [&](int64_t begin, int64_t count, int thread, std::byte* out) {
    LinearJob job = both;
    job.outputs = count * kPanelOutputs;
    job.weights = weight.data.As<std::byte>() + begin * panel_bytes;
    if (job.bias != nullptr) job.bias += begin * kPanelOutputs;
    if (job.scales != nullptr) job.scales += begin * kPanelOutputs;
    job.out = out;
    job.out_stride = kGatedOutputs;
    kernels_.linear_panels(job, 0, count, LinearScratch(thread));
  };
  const int64_t panels = activated.dim(1) / kPanelOutputs;
  ForEachPiece(pool_, panels, kGatedPanels, Operations(both), [&](const Piece& piece) {
    std::byte* gate = gated_scratch_.As<std::byte>() + piece.thread * kGatedScratchBytes;
    std::byte* up = gate + num_rows * kGatedOutputs * size;
    for (int64_t panel = piece.begin; panel < piece.end; panel += kGatedPanels) {
      const int64_t count = std::min(kGatedPanels, piece.end - panel);
      compute(panel, count, piece.thread, gate);
      compute(panels + panel, count, piece.thread, up);
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t offset = row * kGatedOutputs * size;
        kernels_.activate(
            {.function = FunctionOf(activation),
             .element = pack.element,
             .in = gate + offset,
             .up = up + offset,
             .count = count * kPanelOutputs,
             .out = RowOf(activated, row_begin + row) + panel * kPanelOutputs * size});
      }
    }
  });
}

}  // namespace tandem::ops::cpu
