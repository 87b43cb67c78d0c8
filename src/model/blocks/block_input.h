// BlockInput: what a block takes, either rows as they are or the norm of the residual stream, which
// the block's first product then computes on the way (Ops::NormLinear). A plain value.
#pragma once

#include <variant>

#include "ops/ops.h"

namespace tandem {

using BlockInput = std::variant<Tensor, ops::NormedRows>;

inline void RunLinear(ops::Ops& ops, const BlockInput& x, const ops::LinearWeight& weight,
                      const Tensor& out) {
  if (const auto* normed = std::get_if<ops::NormedRows>(&x)) {
    ops.NormLinear(*normed, weight, out);
  } else {
    ops.Linear(std::get<Tensor>(x), weight, out);
  }
}

}  // namespace tandem
