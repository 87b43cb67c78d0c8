// TensorSource: where a Hugging Face folder keeps one tensor of a model. A family answers each
// weight with one; readers apply it to the stored tensor, its bias and its scales alike. Plain
// values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "model/weight_roles.h"

namespace tandem {

// The rows of a fused tensor that make up a weight: row r is the stored row first + r / block *
// stride + r % block.
// - One below the other, as [q; k; v] of Qwen 1, Baichuan and Phi-3: a map of one block each.
// - By head, as the q, k and v of every head of ChatGLM-6B, or by group of heads, as in Falcon and
//   InternLM 2: a block is a head's rows (or those of a group's query heads), the stride the rows
//   of a head (or group) in all.
// - Alternating gate and up rows, as gpt-oss has: blocks of 1 and a stride of 2.
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
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  RowMap rows = {};  // of the rows after `transposed`
  bool transposed =
      false;  // matrices are stored [columns, rows]: GPT-2's Conv1D, Llama 4's experts
  // Index into a stored leading dimension, where one tensor holds all experts of a layer: gpt-oss,
  // Llama 4.
  std::optional<int64_t> expert = std::nullopt;
};

// [first; second; ...]: `rows` rows from `first` on, of a tensor that has `of`.
RowMap RowRange(int64_t first, int64_t rows, int64_t of);

// A weight's name in a family's folders, with "{}" for the layer's number and, after it, an
// expert's: without the suffix of the part.
struct RoleName {
  WeightRole role;
  std::string_view name;
};
// The weight's name in `names`, or its standard one.
TensorSource NamedSource(const ModelSpec& spec, const WeightId& id,
                         std::span<const RoleName> names);
// The weight's standard name, or that of an MLP beside experts: "mlp.<name>.gate_proj".
TensorSource SourceWithShared(const ModelSpec& spec, const WeightId& id, std::string_view name);
// NamedSource, where queries, keys and values are in one tensor: [q; k; v].
TensorSource StackedQkvSource(const ModelSpec& spec, const WeightId& id,
                              std::span<const RoleName> names);
// The same by groups of heads: for each key-value head its query heads, then its key, its value.
TensorSource GroupedQkvSource(const ModelSpec& spec, const WeightId& id,
                              std::span<const RoleName> names);

// The names that most families share: "model.layers.N.", the weight's hf_name and the part's
// hf_suffix.
TensorSource StandardSource(const ModelSpec& spec, const WeightId& id);

}  // namespace tandem
