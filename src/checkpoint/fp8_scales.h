// The scales of fp8 weights as stored in files: one per weight, or one per row. Pure functions,
// used by the weight sources.
#pragma once

#include <string>

#include "checkpoint/as_dtype.h"

namespace tandem {

// INVALID_ARGUMENT unless `stored` is floating-point [1] or [rows] (or [] or [rows, 1]); the
// message begins with `where`. `expected`: the shape by the spec, [1] or [rows].
Status CheckScaleShape(const Tensor& stored, const Shape& expected, const std::string& where);
// INVALID_ARGUMENT unless all are positive numbers.
Status CheckScaleValues(const Tensor& stored, const std::string& where);

// Checked scales as fp32 of the expected shape: a single scale is repeated for all rows.
Result<Tensor> SpreadScales(const Tensor& stored, const Shape& expected, ScratchBuffers& scratch);

}  // namespace tandem
