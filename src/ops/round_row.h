// Rounds rows of plain weights to the elements of a scheme, each block by its largest magnitude:
// what `tandem quantize` writes. WidenRow (backend.h) is the way back. Schemes of fp8, int8 and
// int4 without zero points, with a scale for blocks of one row. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/quant_scheme.h"

namespace tandem::ops {

// What the largest magnitude of a block becomes: 448 in fp8, 127 in int8, 7 in int4.
float LargestElement(QuantScheme::Element element);

// Share of a block's largest magnitude that stays in range: what is larger is clipped. [blocks];
// empty: 1 for all.
using ClipShares = std::span<const float>;

// elements: the row as the scheme stores it; scales: [blocks]. A block with a value that is not
// finite has the scale NaN.
void RoundRow(const QuantScheme& scheme, std::span<const float> row, ClipShares clip,
              void* elements, float* scales);

// The values that RoundRow's elements stand for. out may be row.
void RoundedRow(const QuantScheme& scheme, std::span<const float> row, ClipShares clip,
                std::span<float> out);

}  // namespace tandem::ops
