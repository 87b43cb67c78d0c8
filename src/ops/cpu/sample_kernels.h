// The passes over a whole vocabulary that sampling consists of: vectorized, and chosen once for the
// CPU; every choice gives the same bits. Pure functions: any thread, nothing allocated. A NaN logit
// counts as minus infinity.
#pragma once

#include <cstdint>

#include "ops/cpu/sample_scratch.h"
#include "ops/noise.h"
#include "ops/sample_rules.h"

namespace tandem::ops {

struct MaxLogit {
  float value;
  int32_t token;  // the lowest with that value; -1 when there is nothing above minus infinity
};

struct SampleKernels {
  MaxLogit (*arg_max)(const float* logits, int64_t vocab);
  // Sum of exp(score) over the scores at or above the floor, which is at least kMinScore.
  double (*sum_exp)(const float* logits, int64_t vocab, ScoreMap map);
  // out[i] = exp(score) * scale, 0 below the floor.
  void (*exp_scores)(const float* logits, int64_t vocab, ScoreMap map, float scale, float* out);
  // The token with the largest score + Gumbel noise among those at or above the floor; of equals,
  // the lowest. `likeliest` is arg_max's token.
  int32_t (*gumbel_arg_max)(const float* logits, int64_t vocab, ScoreMap map, NoiseKey key,
                            int32_t likeliest);
  // Writes tokens first .. first + count with scores at or above the floor to `out`; returns their
  // number.
  int64_t (*gather)(const float* logits, int64_t first, int64_t count, ScoreMap map,
                    Candidate* out);
};

const SampleKernels& KernelsForThisCpu();

// The compiled versions; a test compares them.
extern const SampleKernels kSampleKernelsBaseline;
extern const SampleKernels kSampleKernelsAvx2;

}  // namespace tandem::ops
