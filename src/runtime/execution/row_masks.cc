#include "runtime/execution/row_masks.h"

#include <algorithm>

namespace tandem {

bool FillRowMask(TokenConstraint& constraint, std::span<const int32_t> ahead, int64_t vocab,
                 std::span<uint32_t> mask) {
  std::ranges::fill(mask, ~0u);
  constraint.FillMask(ahead, mask);
  // The bits past the end of the vocabulary belong to no token.
  const auto in_last_word = static_cast<uint32_t>(vocab % 32);
  if (in_last_word != 0) mask.back() &= (1u << in_last_word) - 1;
  return std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
}

}  // namespace tandem
