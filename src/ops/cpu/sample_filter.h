// min-p, top-k and top-p of one row: the tokens that may still be drawn. Candidates are ordered by
// score, equal scores by token id (the lower is kept first). Pure functions on the caller's memory.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu/sample_kernels.h"

namespace tandem::ops {

inline bool IsBetter(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

// The `k` best tokens with scores at or above the floor, in no order. out: [vocab]
std::span<Candidate> TopK(const SampleKernels& kernels, const float* logits, int64_t vocab,
                          ScoreMap map, int64_t k, Candidate* out);

// The tokens that can be in the nucleus: all except a tail of negligible weight. `total` is the sum
// of exp of all scores at or above the floor. out: [vocab]
std::span<Candidate> NucleusCandidates(const SampleKernels& kernels, const float* logits,
                                       int64_t vocab, ScoreMap map, double total, float top_p,
                                       Candidate* out);

// Keeps the shortest run of best candidates whose weights reach `mass`; at least one. Reorders the
// candidates.
std::span<Candidate> KeepMass(std::span<Candidate> candidates, double mass);

double TotalWeight(std::span<const Candidate> candidates);

// The candidate with the largest score + Gumbel noise; of equals, the lowest token.
int32_t DrawCandidate(std::span<const Candidate> candidates, NoiseKey key);

}  // namespace tandem::ops
