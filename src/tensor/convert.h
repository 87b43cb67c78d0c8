// Conversions between the floating-point element types of weights, and copies of parts of tensors,
// on the host and the caller's thread. Pure functions over memory that the caller owns; safe on any
// thread.
#pragma once

#include "tensor/tensor.h"

namespace tandem {

// True for the types that weights and activations may have: F32, F16, BF16.
constexpr bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// Writes every element of `from` into `to` (same number of elements; both floating-point, or `from`
// fp8, or both the same type), rounding to nearest even. `from` may be misaligned, as tensors of a
// mapped file can be.
void ConvertElements(const Tensor& from, const Tensor& to);

// The same of floating-point types, times `factor`, which is rounded to the type of `from` before,
// as torch does with a number beside a tensor.
void ScaleElements(const Tensor& from, double factor, const Tensor& to);

// Copies `count` columns of each row, from column `from_begin` of `from` to column `to_begin` of
// `to`: [rows, columns] of one type and equally many rows.
void CopyColumns(const Tensor& from, int64_t from_begin, const Tensor& to, int64_t to_begin,
                 int64_t count);

// Number of elements that are NaN or infinite; 0 for integer types.
int64_t CountNonFinite(const Tensor& tensor);

}  // namespace tandem
