// The rotary tables: cos and sin of position * frequency for every position that will be served,
// with the scaling that the spec asks for. Pure functions, on the host.
#pragma once

#include <vector>

#include "model/spec.h"
#include "tensor/tensor.h"

namespace tandem {

// Angle per position of each pair of elements that turn, [rope.dim / 2]. `max_positions` is the
// longest context served. It matters only to dynamic scaling and longrope, whose base or factors
// are fixed for that length, because cached keys keep their angle; up to the original context they
// are those of short contexts.
//
// kNtkSteps has a base for each step: 0 for prompts of up to the trained length, 1 for up to twice
// that, 2 for up to four times that, ....
std::vector<double> RopeFrequencies(const RopeSpec& rope, int64_t max_positions, int64_t step = 0);
int64_t NtkStep(int64_t trained, int64_t length);
// Steps that prompts of up to max_positions tokens need; 1 for all other scalings.
int64_t NumRopeSteps(const RopeSpec& rope, int64_t max_positions);

// Fills cos and sin, [steps * max_positions, rope.dim / 2] fp32 each, step after step; yarn and
// longrope multiply both by their attention factor.
void FillRopeTables(const RopeSpec& rope, int64_t max_positions, const Tensor& cos,
                    const Tensor& sin);

// The factors of the queries at positions 0, 1, ...; empty: they do not grow.
std::vector<float> QueryFactors(const QueryGrowth& growth, int64_t max_positions);

// ALiBi's slopes: of a power of two heads 2^(-8 / n), 2^(-16 / n), ...; of others those of the
// power below, then every second one of the power above.
std::vector<float> AlibiSlopes(int64_t num_heads, double scale);

}  // namespace tandem
