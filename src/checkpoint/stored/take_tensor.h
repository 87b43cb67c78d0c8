// Applies a TensorSource: a stored tensor becomes the weight that a family finds in it. Pure
// functions, used by the readers of Hugging Face folders.
#pragma once

#include <string>

#include "checkpoint/stored/as_dtype.h"
#include "model/tensor_source.h"

namespace tandem {

// The expert's part of a tensor that stacks those of all experts.
Tensor ExpertOf(const Tensor& stored, int64_t expert);

// The shape of the tensor from which the source reads a weight of shape `expected`. `found`: the
// tensor's shape in the file, which tells how many experts there are.
Shape StoredShape(const TensorSource& source, const Shape& expected, const Shape& found);

// The weight in a checked tensor: a view if its rows are contiguous, else a copy in `scratch`, of
// the stored type.
Result<Tensor> TakeTensor(const Tensor& stored, const TensorSource& source, const Shape& expected,
                          ScratchBuffers& scratch);

// The rows of a weight as rows of its scales, of which one is for `block_rows` rows. UNIMPLEMENTED,
// beginning with `place`, where that would cut a block.
Result<RowMap> BlockRows(const RowMap& rows, int64_t block_rows, const std::string& place);

}  // namespace tandem
