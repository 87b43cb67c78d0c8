#include "checkpoint/sharding.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "tensor/convert.h"

namespace tandem {
namespace {

bool IsKeyOrValue(WeightRole role) {
  return role == WeightRole::kKey || role == WeightRole::kValue;
}

bool IsQkv(WeightRole role) { return role == WeightRole::kQuery || IsKeyOrValue(role); }

// The dimension that is divided, undivided.
int64_t SplitExtent(const ModelSpec& spec, WeightRole role, WeightPart part, Split split) {
  return WeightShape(spec, role, part)[split == Split::kCols ? 1 : 0];
}

int64_t PartExtent(const ModelSpec& spec, const Sharding& sharding, WeightRole role,
                   WeightPart part) {
  const Split split = SplitOf(sharding, role, part);
  const int64_t whole = SplitExtent(spec, role, part, split);
  if (IsKeyOrValue(role)) {
    return std::max(spec.num_kv_heads / sharding.tp_size, int64_t{1}) * spec.head_dim;
  }
  return (whole + sharding.tp_size - 1) / sharding.tp_size;  // rounded up: the vocabulary alone
}

std::string BaseName(WeightRole role, int64_t layer) {
  const std::string prefix = "transformer.layers." + std::to_string(layer) + ".";
  switch (role) {
    case WeightRole::kEmbedding:
      return "transformer.vocab_embedding";
    case WeightRole::kFinalNorm:
      return "transformer.ln_f";
    case WeightRole::kHead:
      return "lm_head";
    case WeightRole::kInputNorm:
      return prefix + "input_layernorm";
    case WeightRole::kPostNorm:
      return prefix + "post_layernorm";
    case WeightRole::kQuery:
    case WeightRole::kKey:
    case WeightRole::kValue:
      return prefix + "attention.qkv";
    case WeightRole::kAttentionOut:
      return prefix + "attention.dense";
    case WeightRole::kGate:
      return prefix + "mlp.fc";
    case WeightRole::kUp:
      return prefix + "mlp.gate";
    case WeightRole::kDown:
      return prefix + "mlp.proj";
  }
  return {};
}

// Rows begin .. of `whole` into `out`; what lies behind its end stays zero.
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

Result<Tensor> LargestScale(WeightSource& source, const FusedTensor& tensor,
                            ScratchBuffers& scratch) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, scratch.Allocate(DType::kF32, {1}));
  float& largest = *out.As<float>();
  for (const WeightRole role : tensor.roles) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor scale, source.Get(role, tensor.layer, tensor.part));
    largest = std::max(largest, *scale.As<float>());
  }
  return out;
}

}  // namespace

Status CheckSharding(const ModelSpec& spec, const Sharding& sharding) {
  const int64_t tp = sharding.tp_size;
  const auto refuse = [tp](const char* what, int64_t value) {
    return InvalidArgument("tp_size is " + std::to_string(tp) + ", which does not divide the " +
                           what + " (" + std::to_string(value) + ")");
  };
  if (tp < 1 || tp > 64) {
    return InvalidArgument("tp_size is " + std::to_string(tp) + "; it must be between 1 and 64");
  }
  if (spec.num_heads % tp != 0) return refuse("attention heads", spec.num_heads);
  if (spec.num_kv_heads % tp != 0 && tp % spec.num_kv_heads != 0) {
    return refuse("key-value heads", spec.num_kv_heads);
  }
  if (spec.intermediate_size % tp != 0) return refuse("intermediate size", spec.intermediate_size);
  if (sharding.parallel_embedding && sharding.embedding_dim == 1 && spec.hidden_size % tp != 0) {
    return refuse("hidden size", spec.hidden_size);
  }
  return {};
}

FusedTensor FusedTensorOf(WeightRole role, int64_t layer, WeightPart part) {
  constexpr std::array kSuffixes = {".weight", ".bias", ".weights_scaling_factor",
                                    ".activation_scaling_factor"};
  FusedTensor tensor{
      BaseName(role, layer) + kSuffixes[static_cast<size_t>(part)], {role}, layer, part};
  if (IsQkv(role)) tensor.roles = {WeightRole::kQuery, WeightRole::kKey, WeightRole::kValue};
  return tensor;
}

std::vector<FusedTensor> FusedTensors(const ModelSpec& spec) {
  std::vector<FusedTensor> tensors = {
      FusedTensorOf(WeightRole::kEmbedding, 0, WeightPart::kWeight)};
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    for (const WeightRole role : LayerRoles()) {
      if (IsKeyOrValue(role)) continue;  // with the query
      for (const WeightPart part : WeightParts(spec, role)) {
        tensors.push_back(FusedTensorOf(role, layer, part));
      }
    }
  }
  tensors.push_back(FusedTensorOf(WeightRole::kFinalNorm, 0, WeightPart::kWeight));
  if (!spec.tied_head) {
    tensors.push_back(FusedTensorOf(WeightRole::kHead, 0, WeightPart::kWeight));
  }
  return tensors;
}

Split SplitOf(const Sharding& sharding, WeightRole role, WeightPart part) {
  if (part == WeightPart::kInputScale) return Split::kNone;
  switch (role) {
    case WeightRole::kInputNorm:
    case WeightRole::kPostNorm:
    case WeightRole::kFinalNorm:
      return Split::kNone;
    case WeightRole::kEmbedding:
      if (!sharding.parallel_embedding) return Split::kNone;
      return sharding.embedding_dim == 0 ? Split::kRows : Split::kCols;
    case WeightRole::kAttentionOut:
    case WeightRole::kDown:
      // Their products are summed over the ranks: the bias is added once, whole, and a rank's sum
      // has all rows, and so all scales.
      return part == WeightPart::kWeight ? Split::kCols : Split::kNone;
    default:
      return Split::kRows;
  }
}

Shape PartShape(const ModelSpec& spec, const Sharding& sharding, WeightRole role, WeightPart part) {
  const Shape whole = WeightShape(spec, role, part);
  const Split split = SplitOf(sharding, role, part);
  if (split == Split::kNone) return whole;
  const int64_t extent = PartExtent(spec, sharding, role, part);
  if (split == Split::kCols) return {whole[0], extent};
  return whole.rank() == 1 ? Shape{extent} : Shape{extent, whole[1]};
}

int64_t PartBegin(const ModelSpec& spec, const Sharding& sharding, WeightRole role, WeightPart part,
                  int64_t rank) {
  if (SplitOf(sharding, role, part) == Split::kNone) return 0;
  if (IsKeyOrValue(role)) return rank * spec.num_kv_heads / sharding.tp_size * spec.head_dim;
  return rank * PartExtent(spec, sharding, role, part);
}

Shape FusedShape(const ModelSpec& spec, const Sharding& sharding, const FusedTensor& tensor) {
  if (tensor.part == WeightPart::kInputScale) return {1};
  int64_t rows = 0;
  Shape part;
  for (const WeightRole role : tensor.roles) {
    part = PartShape(spec, sharding, role, tensor.part);
    rows += part[0];
  }
  return part.rank() == 1 ? Shape{rows} : Shape{rows, part[1]};
}

DType FusedDType(const ModelSpec& spec, const FusedTensor& tensor) {
  return WeightDType(spec, tensor.roles[0], tensor.part);
}

Result<Tensor> MakeShard(WeightSource& source, const Sharding& sharding, const FusedTensor& tensor,
                         int64_t rank, ScratchBuffers& scratch) {
  if (tensor.part == WeightPart::kInputScale) return LargestScale(source, tensor, scratch);
  const ModelSpec& spec = source.spec();
  const Shape shape = FusedShape(spec, sharding, tensor);
  Tensor out;
  int64_t row = 0;
  for (const WeightRole role : tensor.roles) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor whole, source.Get(role, tensor.layer, tensor.part));
    const int64_t begin = PartBegin(spec, sharding, role, tensor.part, rank);
    const bool by_cols = SplitOf(sharding, role, tensor.part) == Split::kCols;
    const bool is_view = tensor.roles.size() == 1 && !by_cols && begin + shape[0] <= whole.dim(0);
    if (is_view) return whole.RowRange(begin, shape[0]);
    if (out.empty()) {
      TANDEM_ASSIGN_OR_RETURN(out, scratch.Allocate(FusedDType(spec, tensor), shape));
    }
    const int64_t rows = PartShape(spec, sharding, role, tensor.part)[0];
    const Tensor part = out.RowRange(row, rows);
    by_cols ? CopyCols(whole, begin, part) : CopyRows(whole, begin, part);
    row += rows;
  }
  return out;
}

}  // namespace tandem
