// The rotary tables: cos and sin of position * frequency for every position that will be served,
// with the scaling that the spec asks for. Pure functions, on the host.
#pragma once

#include <vector>

#include "model/spec.h"
#include "tensor/tensor.h"

namespace tandem {

// Angle per position of each pair of dimensions of a head, [head_dim / 2]. `max_positions` is the
// longest context served. It matters only to dynamic scaling: the base is fixed for that length
// because cached keys keep their angle, and up to the original context it is the unscaled one.
std::vector<double> RopeFrequencies(const RopeSpec& rope, int64_t head_dim, int64_t max_positions);

// Fills cos and sin, [max_positions, head_dim / 2] fp32 each.
void FillRopeTables(const RopeSpec& rope, int64_t head_dim, int64_t max_positions,
                    const Tensor& cos, const Tensor& sin);

}  // namespace tandem
