// RowMasks: the token masks of constrained rows, one bit a token of the target's vocabulary. Owned
// and used by the executor's parts; allocates nothing after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/request/request.h"

namespace tandem {

class RowMasks {
 public:
  RowMasks(int32_t max_rows, int64_t vocab);
  void Clear() { used_ = 0; }
  // The mask of what may follow the committed tokens and `ahead`, valid until Clear; null when no
  // token may.
  const uint32_t* Fill(TokenConstraint& constraint, std::span<const int32_t> ahead);

 private:
  const int64_t vocab_;
  const size_t words_;
  size_t used_ = 0;             // rows
  std::vector<uint32_t> bits_;  // [max_rows, words]
};

inline bool MaskAllows(const uint32_t* mask, int32_t token) {
  return (mask[token / 32] >> (token % 32) & 1u) != 0;
}

}  // namespace tandem
