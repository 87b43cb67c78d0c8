#include "runtime/execution/row_masks.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {

RowMasks::RowMasks(int32_t max_rows, int64_t vocab)
    : vocab_(vocab),
      words_(static_cast<size_t>((vocab + 31) / 32)),
      bits_(static_cast<size_t>(max_rows) * words_) {}

const uint32_t* RowMasks::Fill(TokenConstraint& constraint, std::span<const int32_t> ahead) {
  TANDEM_CHECK((used_ + 1) * words_ <= bits_.size(), "more masked rows than rows");
  const std::span<uint32_t> row = std::span(bits_).subspan(used_++ * words_, words_);
  std::fill(row.begin(), row.end(), ~0u);
  constraint.FillMask(ahead, row);
  // Bits after the vocabulary's end are nobody's tokens.
  const auto in_last_word = static_cast<uint32_t>(vocab_ % 32);
  if (in_last_word != 0) row.back() &= (1u << in_last_word) - 1;
  const bool any = std::any_of(row.begin(), row.end(), [](uint32_t word) { return word != 0; });
  return any ? row.data() : nullptr;
}

}  // namespace tandem
