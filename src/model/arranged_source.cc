#include "model/arranged_source.h"

#include <cmath>
#include <cstring>
#include <string>

#include "tensor/convert.h"

namespace tandem {
namespace {

bool IsTurned(WeightRole role) {
  return role == WeightRole::kQuery || role == WeightRole::kKey || role == WeightRole::kLatent ||
         role == WeightRole::kQueryNorm || role == WeightRole::kKeyNorm;
}

bool IsInterleaved(const ModelSpec& spec, const WeightId& id) {
  return IsTurned(id.role) && RowOf(id.part).follows_rows() &&
         spec.layer(id.layer).attention.rope.interleaved;
}

// Rows of one head, of which `dim` from `first` on turn.
struct TurnedRows {
  int64_t head_rows;
  int64_t first;
  int64_t dim;

  // Where the row that comes at `row` is stored.
  int64_t StoredRow(int64_t row) const {
    const int64_t turned = row % head_rows - first, half = dim / 2;
    if (turned < 0 || turned >= dim) return row;
    return row - turned + (turned < half ? 2 * turned : 2 * (turned - half) + 1);
  }
};
TurnedRows TurnedRowsOf(const AttentionSpec& attention, WeightRole role) {
  const int64_t dim = attention.rope.dim;
  if (!attention.has_latents()) return {attention.head_dim, 0, dim};
  const int64_t head_rows =
      role == WeightRole::kLatent ? attention.head_dim : attention.query_dim();
  return {head_rows, head_rows - dim, dim};
}

// Rows that change their places have the scales of one block.
bool StayInBlocks(const TurnedRows& turned, int64_t rows, int64_t block_rows) {
  for (int64_t row = 0; row < rows; ++row) {
    if (row / block_rows != turned.StoredRow(row) / block_rows) return false;
  }
  return true;
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
  // A scale of the whole tensor or of blocks of rows has no rows.
  const bool of_blocks = RowOf(id.part).extent == WeightPartRow::Extent::kBlocks &&
                         SchemeOf(spec(), id.role, id.layer).block_rows != 1;
  if (of_blocks || stored.dim(0) == 1 || (!turned && !HasRows(spec(), id))) return stored;
  TANDEM_ASSIGN_OR_RETURN(const Tensor out, Copy(stored));
  if (!turned) {
    NormRows(stored, out);
    return out;
  }
  const TurnedRows rows = TurnedRowsOf(spec().layer(id.layer).attention, id.role);
  const auto row_bytes = static_cast<size_t>(stored.NumBytes() / stored.dim(0));
  for (int64_t row = 0; row < stored.dim(0); ++row) {
    const int64_t from = rows.StoredRow(row);
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
    for (const WeightRole role : {WeightRole::kQuery, WeightRole::kKey, WeightRole::kLatent}) {
      if (WeightParts(spec, role, layer).empty() || !IsInterleaved(spec, {role, layer})) continue;
      const QuantScheme scheme = SchemeOf(spec, role, layer);
      if (scheme.is_plain() || scheme.block_rows <= 1) continue;
      const TurnedRows turned = TurnedRowsOf(spec.layer(layer).attention, role);
      if (StayInBlocks(turned, RowOf(role).rows(spec, layer), scheme.block_rows)) continue;
      return Unimplemented("layer " + std::to_string(layer) + ": \"" +
                           std::string(RowOf(role).hf_name) +
                           "\" has scales of blocks of rows, and this model's rotary pairs are "
                           "neighbours, whose rows are rearranged over several blocks");
    }
  }
  return {};
}

}  // namespace tandem
