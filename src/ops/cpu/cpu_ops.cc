#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/pack.h"
#include "ops/cpu/pieces.h"

namespace tandem::ops::cpu {
namespace {

std::byte* RowOf(const Tensor& tensor, int64_t row) {
  return static_cast<std::byte*>(tensor.data) +
         row * tensor.dim(1) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

int64_t RowBytes(const Tensor& tensor) {
  return tensor.dim(1) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

}  // namespace

CpuOps::CpuOps(const CpuKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), sampler_(pool) {
  linear_scratch_ = Buffer::OnHost(static_cast<size_t>(kLinearScratchBytes) * pool.num_threads());
  TANDEM_CHECK(linear_scratch_.data() != nullptr, "no memory for the scratch of the threads");
}

void CpuOps::Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) {
  GatherRows(table, tokens, out);
}

void CpuOps::GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) {
  TANDEM_CHECK(x.dtype == out.dtype && x.dim(1) == out.dim(1), "rows of another kind");
  const int64_t bytes = RowBytes(x);
  ForEachPiece(pool_, out.dim(0), 1, static_cast<double>(out.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t i = piece.begin; i < piece.end; ++i) {
                   std::memcpy(RowOf(out, i), RowOf(x, rows[i]), static_cast<size_t>(bytes));
                 }
               });
}

void CpuOps::AddRmsNorm(const Tensor& residual, const Tensor& delta, const Tensor& weight,
                        float epsilon, const Tensor& out) {
  TANDEM_CHECK(residual.dtype == out.dtype && weight.dtype == out.dtype, "the types differ");
  const int64_t hidden = residual.dim(1);
  ForEachPiece(pool_, residual.dim(0), 1, 10.0 * static_cast<double>(residual.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t row = piece.begin; row < piece.end; ++row) {
                   kernels_.add_rms_norm(ElementOf(out.dtype), RowOf(residual, row),
                                         delta.empty() ? nullptr : RowOf(delta, row), weight.data,
                                         hidden, epsilon, RowOf(out, row));
                 }
               });
}

void CpuOps::SwiGlu(const Tensor& gate_up, const Tensor& out) {
  const int64_t width = out.dim(1);
  TANDEM_CHECK(gate_up.dtype == out.dtype && gate_up.dim(1) == 2 * width,
               "gate_up is not twice out");
  // Pieces within a row, so that one row of a large model is shared too.
  constexpr int64_t kPiece = 1024;
  const int64_t row_pieces = (width + kPiece - 1) / kPiece;
  const auto size = static_cast<int64_t>(SizeOf(out.dtype));
  ForEachPiece(pool_, out.dim(0) * row_pieces, 1, 30.0 * static_cast<double>(out.NumElements()),
               [&](const Piece& piece) {
                 for (int64_t i = piece.begin; i < piece.end; ++i) {
                   const int64_t row = i / row_pieces;
                   const int64_t first = i % row_pieces * kPiece;
                   const std::byte* gate = RowOf(gate_up, row) + first * size;
                   kernels_.swi_glu(ElementOf(out.dtype), gate, gate + width * size,
                                    std::min(kPiece, width - first),
                                    RowOf(out, row) + first * size);
                 }
               });
}

void CpuOps::ReserveSampling(int32_t /*max_rows*/, int64_t vocab) { sampler_.Reserve(vocab); }

void CpuOps::Sample(std::span<const SampleRow> rows, int64_t vocab, std::span<SampledToken> out) {
  sampler_.Sample(rows, vocab, out);
}

void CpuOps::VerifyAndAccept(std::span<const VerifyRow> rows, int64_t vocab) {
  sampler_.VerifyAndAccept(rows, vocab);
}

void CpuOps::ReserveLinear(int64_t cols) {
  const int64_t inputs = PackedInputs(cols);
  if (inputs <= reserved_inputs_) return;
  const int64_t rows = std::max(kMaxLinearRows, pool_.num_threads() * kSmallLinearRows);
  activations_ = Buffer::OnHost(static_cast<size_t>(rows * inputs) * sizeof(float));
  TANDEM_CHECK(activations_.data() != nullptr, "no memory for packed activations");
  reserved_inputs_ = inputs;
}

float* CpuOps::LinearScratch(int thread) const {
  return linear_scratch_.As<float>() + thread * (kLinearScratchBytes / int64_t{sizeof(float)});
}

void CpuOps::Linear(const Tensor& x, const LinearWeight& weight, const Tensor& out) {
  TANDEM_CHECK(x.dtype == weight.dtype, "activations and weights differ in type");
  TANDEM_CHECK(out.dtype == x.dtype || out.dtype == DType::kF32, "out is x's type or fp32");
  TANDEM_CHECK(x.dim(1) == weight.cols && out.dim(1) == weight.rows && x.dim(0) == out.dim(0),
               "shapes do not fit the weight");
  ReserveLinear(weight.cols);
  for (int64_t row = 0; row < x.dim(0); row += kMaxLinearRows) {
    LinearRows(x, row, std::min(kMaxLinearRows, x.dim(0) - row), weight, out);
  }
}

void CpuOps::LinearRows(const Tensor& x, int64_t row_begin, int64_t num_rows,
                        const LinearWeight& weight, const Tensor& out) {
  PackJob pack;
  pack.element = ElementOf(x.dtype);
  pack.x = RowOf(x, row_begin);
  pack.num_rows = num_rows;
  pack.inputs = weight.cols;
  pack.padded_inputs = PackedInputs(weight.cols);
  pack.packed = activations_.data();

  LinearJob job;
  job.element = pack.element;
  job.out_f32 = out.dtype == DType::kF32;
  job.num_rows = num_rows;
  job.inputs = pack.padded_inputs;
  job.outputs = weight.rows;
  job.activations = activations_.data();
  job.weights = weight.data.data();
  job.bias = weight.bias.As<float>();
  job.out = RowOf(out, row_begin);
  job.out_stride = out.dim(1);

  const int64_t blocks = kernels_.num_linear_blocks(pack.element, num_rows);
  const int64_t panels = NumPanels(weight.rows);
  const double operations = 2.0 * static_cast<double>(num_rows * job.inputs * job.outputs);
  constexpr int64_t kGrain = 4;           // panels that a kernel likes to read side by side
  constexpr int64_t kManyRowsGrain = 16;  // and those it keeps in L2 while many rows pass
  if (num_rows > kSmallLinearRows) {
    ForEachPiece(
        pool_, blocks, 1, 10.0 * static_cast<double>(num_rows * job.inputs),
        [&](const Piece& piece) { kernels_.pack_activations(pack, piece.begin, piece.end); });
    ForEachPiece(pool_, panels, kManyRowsGrain, operations, [&](const Piece& piece) {
      kernels_.linear_panels(job, piece.begin, piece.end, LinearScratch(piece.thread));
    });
    return;
  }
  // Few rows: each thread packs a copy of its own, which spares waiting for the others.
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

}  // namespace tandem::ops::cpu
