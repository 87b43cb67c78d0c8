#include "checkpoint/trtllm/fused_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensor/convert.h"

namespace tandem {
namespace {

// Rows begin .. of `whole` into `out`; rows after its end stay zero.
void CopyRows(const Tensor& whole, int64_t begin, const Tensor& out) {
  const int64_t rows = std::clamp(whole.dim(0) - begin, int64_t{0}, out.dim(0));
  if (rows > 0) ConvertElements(whole.RowRange(begin, rows), out.Rows(rows));
}

void CopyCols(const Tensor& whole, int64_t begin, const Tensor& out) {
  const auto element = static_cast<int64_t>(SizeOf(whole.dtype));
  const auto bytes = static_cast<size_t>(out.dim(1) * element);
  const auto* from = static_cast<const std::byte*>(whole.data) + begin * element;
  auto* to = static_cast<std::byte*>(out.data);
  for (int64_t row = 0; row < out.dim(0); ++row) {
    std::memcpy(to, from, bytes);
    from += whole.dim(1) * element;
    to += bytes;
  }
}

}  // namespace

FusedTensor FusedTensorOf(const ModelSpec& spec, const WeightId& id, const Sharding& sharding) {
  const WeightRow& row = RowOf(id.role);
  const WeightPartRow& part = RowOf(id.part);
  FusedTensor tensor;
  tensor.layer = id.layer;
  tensor.part = id.part;
  tensor.expert = id.expert;
  tensor.stage = StageOf(spec, sharding, id);
  if (row.per_layer) {
    const int64_t in_stage = id.layer - FirstLayer(spec, sharding, tensor.stage);
    tensor.name = "transformer.layers." + std::to_string(in_stage) + ".";
  }
  tensor.name +=
      part.trtllm_name.empty() ? WithNumber(row.trtllm_name, id.expert) : part.trtllm_name;
  tensor.name += part.trtllm_suffix;
  for (const WeightRow& other : WeightRows()) {
    if (other.trtllm_name != row.trtllm_name) continue;
    const std::vector<WeightPart> parts = WeightParts(spec, other.role, id.layer);
    if (std::ranges::find(parts, id.part) != parts.end()) tensor.roles.push_back(other.role);
  }
  return tensor;
}

std::vector<FusedTensor> FusedTensors(const ModelSpec& spec, const Sharding& sharding) {
  std::vector<FusedTensor> tensors;
  for (const WeightId& id : StoredWeights(spec)) {
    FusedTensor tensor = FusedTensorOf(spec, id, sharding);
    if (tensor.roles.front() == id.role) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Status CheckFusedSchemes(const ModelSpec& spec, const FusedTensor& tensor) {
  const WeightRole first = tensor.roles.front();
  const QuantScheme scheme = SchemeOf(spec, first, tensor.layer);
  for (const WeightRole role : tensor.roles) {
    const QuantScheme other = SchemeOf(spec, role, tensor.layer);
    const bool alike = other.element == scheme.element && other.block_rows == scheme.block_rows &&
                       other.block_columns == scheme.block_columns;
    if (alike) continue;
    return Unimplemented(tensor.name + " holds " + std::string(RowOf(first).hf_name) + " (" +
                         DescribeScheme(scheme) + ") and " + std::string(RowOf(role).hf_name) +
                         " (" + DescribeScheme(other) +
                         "), which must be quantized alike; serve the folder itself");
  }
  return {};
}

Shape FusedShape(const ModelSpec& spec, const Sharding& sharding, const FusedTensor& tensor) {
  if (tensor.extent() == WeightPartRow::Extent::kOne) return {1};
  if (tensor.extent() == WeightPartRow::Extent::kColumns) {
    return PartShape(spec, sharding, tensor.IdOf(tensor.roles.front()));
  }
  int64_t rows = 0;
  Shape part;
  for (const WeightRole role : tensor.roles) {
    part = PartShape(spec, sharding, tensor.IdOf(role));
    rows += part[0];
  }
  return part.rank() == 1 ? Shape{rows} : Shape{rows, part[1]};
}

DType FusedDType(const ModelSpec& spec, const FusedTensor& tensor) {
  return WeightDType(spec, tensor.IdOf(tensor.roles.front()));
}

Result<Tensor> MakeShard(WeightSource& source, const Sharding& sharding, const FusedTensor& tensor,
                         int64_t rank, ScratchBuffers& scratch) {
  if (tensor.extent() == WeightPartRow::Extent::kOne) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(DType::kF32, {1}));
    TANDEM_ASSIGN_OR_RETURN(*out.As<float>(),
                            LargestInputScale(source, tensor.roles, tensor.IdOf({})));
    return out;
  }
  const ModelSpec& spec = source.spec();
  const Shape shape = FusedShape(spec, sharding, tensor);
  if (tensor.extent() == WeightPartRow::Extent::kColumns) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor whole,
                            CommonVector(source, tensor.roles, tensor.IdOf({})));
    return whole.RowRange(PartBegin(spec, sharding, tensor.IdOf(tensor.roles.front()), rank),
                          shape[0]);
  }
  Tensor out;
  int64_t row = 0;
  for (const WeightRole role : tensor.roles) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor whole, source.Get(tensor.IdOf(role)));
    const int64_t begin = PartBegin(spec, sharding, tensor.IdOf(role), rank);
    const bool by_cols = SplitOf(spec, sharding, tensor.IdOf(role)) == Split::kCols;
    const bool is_view = tensor.roles.size() == 1 && !by_cols && begin + shape[0] <= whole.dim(0);
    if (is_view) return whole.RowRange(begin, shape[0]);
    if (out.empty()) {
      TANDEM_ASSIGN_OR_RETURN(out, scratch.Allocate(FusedDType(spec, tensor), shape));
    }
    const int64_t rows = PartShape(spec, sharding, tensor.IdOf(role))[0];
    const Tensor part = out.RowRange(row, rows);
    by_cols ? CopyCols(whole, begin, part) : CopyRows(whole, begin, part);
    row += rows;
  }
  return out;
}

}  // namespace tandem
