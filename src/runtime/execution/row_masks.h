// The token mask of a constrained row: one bit for each token of the target's vocabulary. Pure
// functions, used by the executor.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/request/request.h"

namespace tandem {

// Sets in `mask` ([vocab / 32] rounded up) the tokens that may follow the committed tokens and then
// `ahead`; false if no token may.
bool FillRowMask(TokenConstraint& constraint, std::span<const int32_t> ahead, int64_t vocab,
                 std::span<uint32_t> mask);

}  // namespace tandem
