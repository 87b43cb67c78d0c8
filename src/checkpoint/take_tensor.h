// Applies a TensorSource: a stored tensor becomes the weight that a family finds in it. Pure
// functions, used by the readers of Hugging Face folders.
#pragma once

#include <string>

#include "checkpoint/as_dtype.h"
#include "model/tensor_source.h"

namespace tandem {

// INVALID_ARGUMENT unless a tensor of shape `stored` holds what the source reads from it, whose
// shape is `expected` according to the config; the message begins with `where`.
Status CheckStoredShape(const Shape& stored, const TensorSource& source, const Shape& expected,
                        const std::string& where);

// The weight in a checked tensor: a view if its rows are contiguous, else a copy in `scratch`, of
// the stored type.
Result<Tensor> TakeTensor(const Tensor& stored, const TensorSource& source, const Shape& expected,
                          ScratchBuffers& scratch);

}  // namespace tandem
