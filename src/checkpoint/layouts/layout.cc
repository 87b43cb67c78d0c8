#include "checkpoint/layouts/layout.h"

#include "checkpoint/layouts/awq.h"
#include "checkpoint/layouts/bytes.h"
#include "checkpoint/layouts/fp4.h"
#include "checkpoint/layouts/gptq.h"
#include "checkpoint/layouts/packed.h"
#include "checkpoint/layouts/row_pairs.h"
#include "checkpoint/layouts/unpack.h"
#include "checkpoint/stored/stored_tensor.h"
#include "checkpoint/stored/take_tensor.h"
#include "tensor/convert.h"

namespace tandem {

const Tensor* StoredMatrix::Find(std::string_view suffix) const {
  return tensors_->FindStored(name_ + std::string(suffix));
}

std::string StoredMatrix::PlaceOf(std::string_view suffix) const {
  return tensors_->PlaceOf(name_ + std::string(suffix));
}

Result<Tensor> StoredMatrix::Get(std::string_view suffix) const {
  const Tensor* tensor = Find(suffix);
  if (tensor == nullptr) return NotFound(PlaceOf(suffix) + " is missing");
  if (!expert_) return *tensor;
  if (tensor->shape.rank() > 1 && *expert_ < tensor->dim(0)) return ExpertOf(*tensor, *expert_);
  return InvalidArgument(PlaceOf(suffix) + ": has shape " + tensor->shape.ToString() +
                         ", and no expert " + std::to_string(*expert_));
}

Result<Tensor> StoredMatrix::Get(std::string_view suffix, DType dtype, const Shape& shape) const {
  TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, Get(suffix));
  TANDEM_RETURN_IF_ERROR(CheckStored(tensor, WeightPart::kWeight, shape, dtype, PlaceOf(suffix)));
  return tensor;
}

Result<Tensor> StoredMatrix::GetScales(std::string_view suffix, const Shape& shape,
                                       DType dtype) const {
  TANDEM_ASSIGN_OR_RETURN(const Tensor tensor, Get(suffix));
  TANDEM_RETURN_IF_ERROR(CheckStored(tensor, WeightPart::kScale, shape, dtype, PlaceOf(suffix)));
  TANDEM_RETURN_IF_ERROR(CheckScaleValues(tensor, PlaceOf(suffix)));
  return tensor;
}

Result<Tensor> Layout::Unpack(const StoredMatrix& matrix, const QuantScheme& scheme,
                              WeightPart part, ScratchBuffers& scratch) const {
  switch (part) {
    case WeightPart::kWeight:
      return Elements(matrix, scheme, scratch);
    case WeightPart::kScale:
      return Scales(matrix, scheme, scratch);
    case WeightPart::kZero:
      return Zeros(matrix, scheme, scratch);
    case WeightPart::kInputFactors:
      return InputFactors(matrix, scratch);
    case WeightPart::kInputOrder:
      return InputOrder(matrix, scheme, scratch);
    case WeightPart::kInputScale:
      return InputScale(matrix, scratch);
    case WeightPart::kBias:
    case WeightPart::kCacheScale:
    case WeightPart::kCount:
      break;
  }
  return Internal("a part that is stored as in folders that are not quantized");
}

Result<Tensor> Layout::Zeros(const StoredMatrix& /*matrix*/, const QuantScheme& /*scheme*/,
                             ScratchBuffers& /*scratch*/) const {
  return Internal("a layout without zero points");
}

Result<Tensor> Layout::InputOrder(const StoredMatrix& /*matrix*/, const QuantScheme& /*scheme*/,
                                  ScratchBuffers& /*scratch*/) const {
  return Internal("a layout without an order of inputs");
}

Result<Tensor> Layout::InputFactors(const StoredMatrix& matrix, ScratchBuffers& scratch) const {
  TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kInputFactorsSuffix));
  return ToFloats(stored, {matrix.columns()}, scratch);
}

Result<Tensor> Layout::InputScale(const StoredMatrix& matrix, ScratchBuffers& scratch) const {
  TANDEM_ASSIGN_OR_RETURN(const Tensor stored, matrix.Get(kInputScaleSuffix));
  return ToFloats(stored, {1}, scratch);
}

const Layout* FindLayout(Packing packing) {
  switch (packing) {
    case Packing::kNone:
      return nullptr;
    case Packing::kBytes:
      return &BytesLayout();
    case Packing::kGptq:
      return &GptqLayout();
    case Packing::kGptqV2:
      return &GptqV2Layout();
    case Packing::kAwqGemm:
      return &AwqGemmLayout();
    case Packing::kAwqGemv:
      return &AwqGemvLayout();
    case Packing::kPackQuantized:
      return &PackedLayout();
    case Packing::kRowPairs:
      return &RowPairsLayout();
    case Packing::kNvFp4:
      return &NvFp4Layout();
    case Packing::kNvFp4Packed:
      return &NvFp4PackedLayout();
    case Packing::kMxFp4:
      return &MxFp4Layout();
    case Packing::kMxFp4Packed:
      return &MxFp4PackedLayout();
    case Packing::kMxFp4Blocks:
      return &MxFp4BlocksLayout();
  }
  return nullptr;
}

}  // namespace tandem
