// BlockInput: what a block takes, either rows as they are or the norm of the residual stream, which
// the block's first product then computes on the way (Ops::NormLinear). A plain value.
#pragma once

#include <variant>

#include "ops/ops.h"

namespace tandem {

using BlockInput = std::variant<Tensor, ops::NormedRows>;

// The rows themselves, for a block with several products of them.
inline Tensor RowsOf(ops::Ops& ops, const BlockInput& x) {
  if (const auto* rows = std::get_if<Tensor>(&x)) return *rows;
  const auto& normed = std::get<ops::NormedRows>(x);
  ops.AddNorm(normed);
  return normed.rows;
}

inline void RunLinear(ops::Ops& ops, const BlockInput& x, const ops::LinearWeight& weight,
                      const Tensor& out) {
  if (const auto* normed = std::get_if<ops::NormedRows>(&x)) {
    ops.NormLinear(*normed, weight, out);
  } else {
    ops.Linear(std::get<Tensor>(x), weight, out);
  }
}

}  // namespace tandem
