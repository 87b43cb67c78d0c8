// Converts a tensor of a mapped file to the floating-point type and alignment that the engine
// needs. Used by the weight sources, each with its own ScratchBuffers; one thread.
#pragma once

#include <vector>

#include "base/status.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace tandem {

// Memory of tensors that had to be converted or merged: it lives until Clear().
class ScratchBuffers {
 public:
  // RESOURCE_EXHAUSTED when there is not enough memory.
  Result<Tensor> Allocate(DType dtype, const Shape& shape);
  void Clear() { buffers_.clear(); }

 private:
  std::vector<Buffer> buffers_;
};

// `tensor` itself when it is already right; otherwise a converted copy in `scratch`.
Result<Tensor> AsDType(const Tensor& tensor, DType dtype, ScratchBuffers& scratch);

}  // namespace tandem
