// Checks of the tensors in files, the same for every format: shape, type and, of scales, their
// values; and scales as the loader needs them. Pure functions, used by the weight sources.
#pragma once

#include <string>

#include "checkpoint/stored/as_dtype.h"
#include "model/weight_parts.h"

namespace tandem {

// INVALID_ARGUMENT unless a file's tensor has the shape `expected`; scales may also be [1] (or []),
// one for all, or [rows, 1]. UNIMPLEMENTED unless it has a type that can be read as `dtype`: a
// floating-point type as any other, everything else only as itself. The message begins with
// `where`.
Status CheckStored(const Tensor& stored, WeightPart part, const Shape& expected, DType dtype,
                   const std::string& where);
// INVALID_ARGUMENT unless all are positive numbers, and none denormal.
Status CheckScaleValues(const Tensor& stored, const std::string& where);
// INVALID_ARGUMENT unless the vector holds each of its indices once.
Status CheckInputOrder(const Tensor& stored, const std::string& where);

// Values as fp32 of `shape`, which has as many elements, or any number of them if there is one
// value.
Result<Tensor> ToFloats(const Tensor& stored, const Shape& shape, ScratchBuffers& scratch);
// The transpose of [groups, rows] as fp32 of `shape`.
Result<Tensor> ToTransposedFloats(const Tensor& stored, const Shape& shape,
                                  ScratchBuffers& scratch);

// Of one type and shape, and equal bit for bit.
bool SameBytes(const Tensor& a, const Tensor& b);

}  // namespace tandem
