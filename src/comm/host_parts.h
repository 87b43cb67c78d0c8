// How ranks on the host put parts of tensors together, once they see each other's: the same bits
// wherever it is computed. Pure functions over host memory.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace tandem {

// Elements that are best added up at a time.
constexpr int64_t kSumPiece = 1024;

// Elements begin .. begin + count of `parts`, which are of one type and size, at most kSumPiece of
// them: added up in fp32 in the order of the parts, rounded once, and written to all `sums`, which
// may be the parts.
void AddUp(std::span<const Tensor> parts, int64_t begin, int64_t count,
           std::span<const Tensor> sums);

// Copies part: [rows, n] into columns `begin` .. begin + n - 1 of all: [rows, columns]; what would
// lie beyond `columns` is left out.
void PutColumns(const Tensor& part, int64_t begin, const Tensor& all);

}  // namespace tandem
