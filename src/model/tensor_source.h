// TensorSource: where a Hugging Face folder keeps one tensor of a model. A family answers each
// weight with one; readers apply it to the stored tensor, its bias and its scales alike. Plain
// values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/weight_roles.h"

namespace tandem {

// The rows of a fused tensor that make up a weight: row r is the stored row first + r / block *
// stride + r % block. So [q; k; v] is three maps of one block each; a tensor that stacks q, k and v
// of each head (or group of heads) has a stride; and alternating gate and up rows have blocks of 1
// and a stride of 2.
struct RowMap {
  int64_t first = 0;
  int64_t block = 0;   // 0: the stored tensor is the weight, row by row
  int64_t stride = 0;  // from the start of a block to the start of the next
  int64_t of = 0;      // number of rows of the stored tensor

  bool is_identity() const { return block == 0; }
  int64_t StoredRow(int64_t row) const {
    return is_identity() ? row : first + row / block * stride + row % block;
  }
};

struct TensorSource {
  std::string name;         // "model.layers.0.self_attn.q_proj.weight"
  RowMap rows = {};         // of the rows after `transposed`
  bool transposed = false;  // matrices are stored [columns, rows], as Conv1D keeps them
  std::optional<int64_t> expert = std::nullopt;  // index into a stored leading dimension
};

// The names that most families share: "model.layers.N.", the table's hf_name, and then ".weight",
// ".bias", ".weight_scale", ".input_scale", and ".k_scale" or ".v_scale" of the cache.
TensorSource StandardSource(const ModelSpec& spec, const WeightId& id);

}  // namespace tandem
