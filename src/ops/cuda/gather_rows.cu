#include <algorithm>

#include "ops/cuda/cuda_ops.cuh"
#include "ops/cuda/device/dependent_launch.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kThreads = 128;

// `x`: rows first .. first + part_rows - 1 of a table of num_rows; what is not there is zeros. One
// block per row and piece of it; Word is the widest type that divides a row.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const Word* x, int64_t first, int64_t part_rows, int64_t num_rows,
                     const int32_t* rows, int64_t row_words, Word* out) {
  BeginKernel();
  const int64_t asked = rows[blockIdx.x];
  const int64_t row = (asked < num_rows ? asked : 0) - first;
  const bool is_here = row >= 0 && row < part_rows;
  const Word* from = x + row * row_words;
  Word* to = out + blockIdx.x * row_words;
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < row_words;
       i += int64_t{gridDim.y} * kThreads) {
    to[i] = is_here ? from[i] : Word{};
  }
}

}  // namespace

void CudaOps::GatherRows(const Tensor& x, const int32_t* rows, const Tensor& out) {
  EmbedPart({.rows = x, .first = 0, .num_rows = x.dim(0)}, rows, out);
}

// A padding row holds token 0, so every token is a row of the table.
void CudaOps::Embed(const Tensor& table, const int32_t* tokens, const Tensor& out) {
  GatherRows(table, tokens, out);
}

void CudaOps::EmbedPart(const TablePart& part, const int32_t* tokens, const Tensor& out) {
  const Tensor& x = part.rows;
  TANDEM_CHECK(x.dtype == out.dtype && x.dim(1) == out.dim(1), "rows of another kind");
  const int64_t bytes = out.dim(1) * static_cast<int64_t>(SizeOf(out.dtype));
  if (out.dim(0) == 0 || bytes == 0) return;
  const auto launch = [&]<typename Word>(Word) {
    const auto words = bytes / static_cast<int64_t>(sizeof(Word));
    const dim3 grid(static_cast<unsigned>(out.dim(0)),
                    static_cast<unsigned>(std::min<int64_t>(CeilDiv(words, kThreads), 16)));
    LaunchEarly(context_, "GatherRows", GatherRowsKernel<Word>, grid, kThreads, 0,
                static_cast<const Word*>(x.data), part.first, x.dim(0), part.num_rows, tokens,
                words, static_cast<Word*>(out.data));
  };
  if (bytes % 16 == 0) {
    launch(uint4{});
  } else if (bytes % 2 == 0) {
    launch(uint16_t{});
  } else {
    launch(uint8_t{});
  }
}

}  // namespace tandem::ops::cuda
