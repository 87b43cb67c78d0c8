#include "checkpoint/stored/as_dtype.h"

#include <cstdint>
#include <string>
#include <utility>

#include "tensor/convert.h"

namespace tandem {

Result<Tensor> ScratchBuffers::Allocate(DType dtype, const Shape& shape) {
  const auto bytes = static_cast<size_t>(shape.NumElements()) * SizeOf(dtype);
  Buffer buffer = Buffer::OnHost(bytes);
  if (buffer.data() == nullptr) {
    return ResourceExhausted("no memory for a tensor of " + std::to_string(bytes) + " bytes");
  }
  const Tensor view = buffer.View(dtype, shape);
  buffers_.push_back(std::move(buffer));
  return view;
}

Result<Tensor> AsDType(const Tensor& tensor, DType dtype, ScratchBuffers& scratch) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.data) % SizeOf(dtype) == 0;
  if (tensor.dtype == dtype && aligned) return tensor;
  TANDEM_ASSIGN_OR_RETURN(const Tensor copy, scratch.Allocate(dtype, tensor.shape));
  ConvertElements(tensor, copy);
  return copy;
}

}  // namespace tandem
