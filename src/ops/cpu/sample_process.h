// Changes a row's logits before a draw: penalties, biases, bans and the mask, in that order; a
// token that may not be drawn gets minus infinity. Pure functions of the row: any thread.
#pragma once

#include <cstdint>

#include "ops/sampling.h"

namespace tandem::ops {

// Writes the row's logits after penalties, n-gram bans, bias, bans and mask. out: [vocab]
void ProcessLogits(const SampleRow& row, int64_t vocab, float* out);

// top_p of the row's draw: decayed for every output token since the last reset token.
float EffectiveTopP(const SampleRow& row);

// The token to draw when every token is banned: the likeliest token the mask allows (bans yield to
// the mask, so that a grammar holds); without a mask the first end id; else the likeliest token;
// else token 0.
int32_t FallbackToken(const SampleRow& row, int64_t vocab);

}  // namespace tandem::ops
