// Rounding on the GPU: weights when they are loaded, activations before a large product. A row has
// one scale: its stored elements times the scale are its values. Weights of 4 bits have one for
// each group.
#pragma once

#include "ops/cuda/device/context.cuh"
#include "ops/cuda/linear/int4_layout.h"
#include "tensor/tensor.h"

namespace tandem::ops::cuda {

// The largest values of what is rounded to: fp8 e4m3, and integers, whose range is symmetric.
constexpr float kFp8Max = 448.0f;
constexpr float kInt8Max = 127.0f;
constexpr float kInt4Max = 7.0f;

// rows: [n, cols] bf16, fp16 or fp32 on the device. `to`: fp8 or int8. out: n rows of `pitch`
// bytes, of which cols are written; scales: [n], the row's largest magnitude / that of `to` (1 for
// a row of zeros).
void QuantizeWeightRows(const Context& context, const Tensor& rows, DType to, void* out,
                        int64_t pitch, float* scales);

// The same to groups of 4 bits: rows `first_row` .. of the packed weight.
void QuantizeInt4Rows(const Context& context, const Tensor& rows, const Int4Layout& layout,
                      int64_t first_row, void* tiles, float2* scales);

// Rows of stored elements of 4 bits, [n, cols / 2] bytes on the device, to their places in the
// packed weight.
void TileInt4Rows(const Context& context, const Tensor& rows, const Int4Layout& layout,
                  int64_t first_row, void* tiles);
// Their scales, [1], [n] or [n, groups] fp32, and zero points, likewise bytes; `zeros` null: none.
// `activations`: the type in which they will be multiplied.
void TileInt4Factors(const Context& context, int64_t num_rows, const Tensor& scales,
                     const Tensor& zeros, DType activations, const Int4Layout& layout,
                     int64_t first_row, float2* tiled_scales, uint32_t* tiled_zeros);

// x: [n, cols] bf16 or fp16, cols a multiple of 8, 16-byte aligned. `to`: fp8 or int8. out: [n,
// cols]; scales: [n]. `fixed_scale` is the scale of all rows; 0 means that each row is scaled as
// for weights. A NaN stays in its row.
void QuantizeActivations(const Context& context, const Tensor& x, DType to, float fixed_scale,
                         void* out, float* scales);

// The same of silu(gate) * up of gate_up [n, 2 cols], with the bits that Activate and
// QuantizeActivations give.
void QuantizeSwiGlu(const Context& context, const Tensor& gate_up, DType to, float fixed_scale,
                    void* out, float* scales);

// A product of rows and weights of int8, before it is scaled: its value is sums [n, rows] *
// token_scales [n] * row_scales [rows] + bias [rows], which may be null.
struct IntegerSums {
  const int32_t* sums = nullptr;
  const float* token_scales = nullptr;
  const float* row_scales = nullptr;
  const float* bias = nullptr;
};

// QuantizeSwiGlu to int8 of the n tokens' product gate_up [n, 2 cols], with the bits that it has
// after ScaleSums. `activations`: bf16 or fp16.
void QuantizeSwiGluSums(const Context& context, const IntegerSums& gate_up, DType activations,
                        int64_t n, int64_t cols, float fixed_scale, void* out, float* scales);

// out [n, cols] = x [n, cols] as a weight's columns take it: column c is x[order[c]] *
// factors[order[c]], rounded to the type of x. Either vector may be null: the same order, factors
// of 1.
void ArrangeInputs(const Context& context, const Tensor& x, const int32_t* order,
                   const float* factors, void* out);

// out [n, rows] = the product. rows: a multiple of 4. out: of the type `activations` or fp32.
void ScaleSums(const Context& context, const IntegerSums& product, DType activations,
               const Tensor& out);

}  // namespace tandem::ops::cuda
