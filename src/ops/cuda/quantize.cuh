// Rounding to fp8 (e4m3) on the GPU: weights when they are loaded, activations before a large
// product. A row has one scale: its stored elements times the scale are its values.
#pragma once

#include "ops/cuda/context.cuh"
#include "tensor/tensor.h"

namespace tandem::ops::cuda {

// The largest value of fp8 e4m3.
constexpr float kFp8Max = 448.0f;

// rows: [n, cols] bf16, fp16 or fp32 on the device. out: n rows of `pitch` bytes, of which cols are
// written; scales: [n], the row's largest magnitude / kFp8Max (1 for a row of zeros).
void QuantizeWeightRows(const Context& context, const Tensor& rows, void* out, int64_t pitch,
                        float* scales);

// x: [n, cols] bf16 or fp16, cols a multiple of 8, 16-byte aligned. out: [n, cols]; scales: [n].
// `fixed_scale` is the scale of all rows; 0 means that each row is scaled as for weights. A NaN
// stays in its row.
void QuantizeActivations(const Context& context, const Tensor& x, float fixed_scale, void* out,
                         float* scales);

// The same of silu(gate) * up of gate_up [n, 2 cols], with the bits that SwiGlu and
// QuantizeActivations give.
void QuantizeSwiGlu(const Context& context, const Tensor& gate_up, float fixed_scale, void* out,
                    float* scales);

}  // namespace tandem::ops::cuda
