#include "model/arranged_source.h"

#include <cmath>
#include <cstring>
#include <string>

#include "tensor/convert.h"

namespace tandem {
namespace {

bool IsTurned(WeightRole role) {
  return role == WeightRole::kQuery || role == WeightRole::kKey || role == WeightRole::kQueryNorm ||
         role == WeightRole::kKeyNorm;
}

bool IsInterleaved(const ModelSpec& spec, const WeightId& id) {
  return IsTurned(id.role) && RowOf(id.part).follows_rows() &&
         spec.layer(id.layer).attention.rope.interleaved;
}

// Where the row of a head that comes at `index` is stored.
int64_t StoredIndex(const RopeSpec& rope, int64_t index) {
  const int64_t half = rope.dim / 2;
  if (index >= rope.dim) return index;
  return index < half ? 2 * index : 2 * (index - half) + 1;
}

bool HasRows(const ModelSpec& spec, const WeightId& id) {
  return id.role == WeightRole::kHead && id.part == WeightPart::kWeight && spec.head_normed;
}

// Divides each row by its length, as torch.nn.functional.normalize does.
void NormRows(const Tensor& stored, const Tensor& out) {
  const int64_t columns = stored.dim(1);
  std::vector<float> row(static_cast<size_t>(columns));
  const Tensor floats{row.data(), DType::kF32, {1, columns}, {}};
  for (int64_t r = 0; r < stored.dim(0); ++r) {
    ConvertElements(stored.RowRange(r, 1), floats);
    double squares = 0.0;
    for (const float value : row) squares += static_cast<double>(value) * value;
    const auto length = static_cast<float>(std::max(std::sqrt(squares), 1e-12));
    for (float& value : row) value /= length;
    ConvertElements(floats, out.RowRange(r, 1));
  }
}

}  // namespace

Result<Tensor> ArrangedSource::Copy(const Tensor& like) {
  Buffer& copy = copies_.emplace_back(Buffer::OnHost(static_cast<size_t>(like.NumBytes())));
  if (copy.data() == nullptr) {
    return ResourceExhausted("no memory to arrange a weight of " + std::to_string(like.NumBytes()) +
                             " bytes");
  }
  return copy.View(like.dtype, like.shape);
}

Result<Tensor> ArrangedSource::Get(const WeightId& id) {
  TANDEM_ASSIGN_OR_RETURN(const Tensor stored, source_.Get(id));
  const bool turned = IsInterleaved(spec(), id);
  // A scale of the whole tensor has no rows.
  if (stored.dim(0) == 1 || (!turned && !HasRows(spec(), id))) return stored;
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, Copy(stored));
  if (!turned) {
    NormRows(stored, out);
    return out;
  }
  const AttentionSpec& attention = spec().layer(id.layer).attention;
  const auto row_bytes = static_cast<size_t>(stored.NumBytes() / stored.dim(0));
  for (int64_t row = 0; row < stored.dim(0); ++row) {
    const int64_t index = row % attention.head_dim;
    const int64_t from = row - index + StoredIndex(attention.rope, index);
    std::memcpy(static_cast<std::byte*>(out.data) + static_cast<size_t>(row) * row_bytes,
                static_cast<const std::byte*>(stored.data) + static_cast<size_t>(from) * row_bytes,
                row_bytes);
  }
  return out;
}

void ArrangedSource::Release() {
  copies_.clear();
  source_.Release();
}

Status CheckArrangeable(const ModelSpec& spec) {
  for (int64_t layer = 0; layer < spec.num_layers(); ++layer) {
    for (const WeightRole role : {WeightRole::kQuery, WeightRole::kKey}) {
      if (!IsInterleaved(spec, {role, layer})) continue;
      const QuantScheme scheme = SchemeOf(spec, role, layer);
      if (scheme.is_plain() || scheme.block_rows <= 1) continue;
      return Unimplemented("layer " + std::to_string(layer) + ": \"" +
                           std::string(RowOf(role).hf_name) +
                           "\" has scales of blocks of rows, and this model's rotary pairs are "
                           "neighbours, whose rows are rearranged");
    }
  }
  return {};
}

}  // namespace tandem
